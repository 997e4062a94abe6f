from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pumasi.catalogue import make_spec
from pumasi.core.frameworks import (
    FRAMEWORKS,
    PLACEHOLDER,
    Gang,
    chief_ports,
    decides,
    environment,
    find_framework,
    hostfile,
    settle_see_gpus,
)
from pumasi.core.frameworks.lightning import LightningOptions
from pumasi.core.options import Options
from pumasi.core.ranks import RankTable, rank_table

CHOICES = ("auto", "none", *(framework.name for framework in FRAMEWORKS))


def gang(table: RankTable, **more: Any) -> Gang:
    return Gang("imdb-x7k2p", attempt=1, restarts=3, table=table, **more)


def environments(which: Gang, chosen: str = "auto") -> list[dict[str, str]]:
    return [environment(which, rank, chosen) for rank in which.table.ranks]


def unequal(**more: Any) -> Gang:
    """Three slots as [1, 2]: the chief alone, two on the other node."""
    return gang(rank_table({"big": 2, "small": 1}), **more)


def with_servers(*, trainers: int = 2, ps: int = 0, evaluator: bool = False) -> Gang:
    return gang(rank_table({"here": trainers}, ["ps"] * ps + ["evaluator"] * evaluator))


def shown_as(slot_as_node: bool) -> dict[type[Options], Options]:
    return {LightningOptions: LightningOptions(slot_as_node=slot_as_node)}


def two_nodes(slots: tuple[int, int] = (1, 2), **more: Any) -> Gang:
    """One process on each of two nodes."""
    return gang(rank_table({"a": 1, "b": 1}), per_node=True, slots_per_node=slots, **more)


# All together


def test_every_rank_knows_its_run_its_attempt_and_itself() -> None:
    values = environments(unequal())[2]
    assert values["PUMASI_RUN"] == "imdb-x7k2p"
    assert values["PUMASI_ATTEMPT"] == "1"
    assert (values["PUMASI_RANK"], values["PUMASI_WORLD_SIZE"]) == ("2", "3")
    assert values["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize("chosen", CHOICES)
def test_a_process_that_is_alone_is_told_nothing_about_others(chosen: str) -> None:
    alone = gang(rank_table({"here": 1}))
    ours = {"PYTHONUNBUFFERED", "PUMASI_RUN", "PUMASI_ATTEMPT", "PUMASI_RANK", "PUMASI_WORLD_SIZE"}
    assert environments(alone, chosen)[0].keys() == ours
    assert chief_ports(alone, chosen) == ()


@pytest.mark.parametrize("chosen", ["auto", "none", "tensorflow", "torch", "jax", "horovod"])
def test_a_gang_is_wired_for_all_frameworks_whichever_is_chosen(chosen: str) -> None:
    values = environments(unequal(), chosen)[1]
    wanted = {"TF_CONFIG", "MASTER_ADDR", "JAX_COORDINATOR_ADDRESS", "KERAS_DISTRIBUTION_NUM_PROCESSES", "HOROVOD_RANK"}
    assert wanted <= values.keys()
    assert chief_ports(unequal(), chosen) == ("horovod", "torch", "jax")


@pytest.mark.parametrize("chosen", CHOICES)
def test_what_is_known_to_break_scripts_is_never_set(chosen: str) -> None:
    forbidden = {"TORCHELASTIC_USE_AGENT_STORE", "TF_USE_LEGACY_KERAS", "GLOO_SOCKET_IFNAME", "ROCR_VISIBLE_DEVICES"}
    for which in (unequal(gpus=(("0",), ("0", "1"))), two_nodes(), with_servers(ps=1)):
        for values in environments(which, chosen):
            assert not forbidden & values.keys()
            assert not any(name.startswith("SLURM") for name in values)


def test_peers_are_reached_without_a_proxy_and_each_node_is_named_once() -> None:
    values = environments(unequal())[0]
    assert values["no_proxy"] == values["NO_PROXY"] == "{host:0},{host:1}"


PLACEMENTS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(
    lambda shares: {f"node-{number}": share for number, share in enumerate(shares)}
)


@settings(max_examples=150)
@given(
    placement=PLACEMENTS,
    ps=st.integers(0, 2),
    evaluator=st.booleans(),
    per_node=st.booleans(),
    slot_as_node=st.booleans(),
    chosen=st.sampled_from(CHOICES),
)
def test_the_agent_can_fill_in_every_placeholder(
    placement: dict[str, int], ps: int, evaluator: bool, per_node: bool, slot_as_node: bool, chosen: str
) -> None:
    shown = dict.fromkeys(placement, 1) if per_node else placement
    slots = tuple(placement.values()) if per_node else ()
    table = rank_table(shown, ["ps"] * ps + ["evaluator"] * evaluator)
    which = gang(table, per_node=per_node, sections=shown_as(slot_as_node), slots_per_node=slots)
    ports = {str(rank.rank) for rank in table.ranks} | set(chief_ports(which, chosen))
    known = {"host": {str(rank.rank) for rank in table.ranks}, "port": ports, "file": {"rsh", "hostfile"}}
    for values in environments(which, chosen):
        for value in values.values():
            assert all(name in known[kind] for kind, name in re.findall(PLACEHOLDER, value))


@settings(max_examples=50)
@given(placement=PLACEMENTS)
def test_the_ranks_of_every_framework_are_numbered_without_gap(placement: dict[str, int]) -> None:
    which = gang(rank_table(placement))
    size = sum(placement.values())
    assume(size > 1)
    every = environments(which)
    for rank, world in (
        ("RANK", "WORLD_SIZE"),
        ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ):
        assert [values[rank] for values in every] == [str(number) for number in range(size)]
        assert {values[world] for values in every} == {str(size)}


# TensorFlow


def tf_configs(which: Gang) -> list[dict[str, Any]]:
    return [json.loads(values["TF_CONFIG"]) for values in environments(which)]


def test_tensorflow_workers_share_one_cluster_and_each_knows_its_place() -> None:
    first, second, third = tf_configs(unequal())
    assert first["cluster"] == {"worker": ["{host:0}:{port:0}", "{host:1}:{port:1}", "{host:2}:{port:2}"]}
    assert first["cluster"] == second["cluster"] == third["cluster"]
    assert [config["task"] for config in (first, second, third)] == [{"type": "worker", "index": n} for n in range(3)]


def test_with_parameter_servers_there_are_chief_worker_and_ps() -> None:
    configs = tf_configs(with_servers(trainers=3, ps=2))
    assert {role: len(members) for role, members in configs[0]["cluster"].items()} == {"chief": 1, "worker": 2, "ps": 2}
    assert [(config["task"]["type"], config["task"]["index"]) for config in configs] == [
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
        ("ps", 0),
        ("ps", 1),
    ]


def test_the_evaluator_finds_itself_but_nobody_else_knows_it() -> None:
    *others, evaluator = tf_configs(with_servers(evaluator=True))
    assert all("evaluator" not in config["cluster"] for config in others)
    assert evaluator["cluster"]["evaluator"] == ["{host:2}:{port:2}"]
    assert evaluator["cluster"]["chief"] == others[0]["cluster"]["chief"]
    assert evaluator["task"] == {"type": "evaluator", "index": 0}


@pytest.mark.parametrize("which", [with_servers(ps=1), with_servers(evaluator=True), with_servers(trainers=1, ps=1)])
def test_where_roles_are_given_only_tensorflow_is_wired(which: Gang) -> None:
    for values in environments(which, "tensorflow"):
        assert "TF_CONFIG" in values
        assert (
            not {"RANK", "WORLD_SIZE", "JAX_PROCESS_ID", "HOROVOD_RANK", "KERAS_DISTRIBUTION_PROCESS_ID"}
            & values.keys()
        )
    assert chief_ports(which, "tensorflow") == ()


# PyTorch


def test_torch_ranks_find_what_torchrun_sets() -> None:
    last = environments(unequal(), "torch")[2]
    torchrun = {
        "MASTER_ADDR": "{host:0}",
        "MASTER_PORT": "{port:torch}",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "3",
        "TORCHELASTIC_RUN_ID": "imdb-x7k2p",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert torchrun.items() <= last.items()
    assert not any(name.startswith("PET_") for name in last)


def test_torch_ranks_that_share_a_node_do_not_each_take_all_cores() -> None:
    alone, *sharing = environments(unequal(), "torch")
    assert "OMP_NUM_THREADS" not in alone
    assert all(values["OMP_NUM_THREADS"] == "1" for values in sharing)
    assert not any("OMP_NUM_THREADS" in values for values in environments(unequal(), "tensorflow"))


def test_slots_that_are_shown_as_nodes_have_a_node_each() -> None:
    for rank, values in enumerate(environments(unequal(sections=shown_as(True)))):
        assert (values["LOCAL_RANK"], values["LOCAL_WORLD_SIZE"]) == ("0", "1")
        assert values["GROUP_RANK"] == values["NODE_RANK"] == values["RANK"] == str(rank)
        assert values["GROUP_WORLD_SIZE"] == values["WORLD_SIZE"] == "3"


def test_torchrun_finds_how_many_processes_its_own_node_gets() -> None:
    first, second = environments(two_nodes((1, 2)), "torch")
    assert (first["PET_NPROC_PER_NODE"], second["PET_NPROC_PER_NODE"]) == ("1", "2")
    assert (first["PET_NODE_RANK"], second["PET_NODE_RANK"]) == ("0", "1")
    for values in (first, second):
        assert values["PET_NNODES"] == "2"
        assert (values["PET_MASTER_ADDR"], values["PET_MASTER_PORT"]) == ("{host:0}", "{port:torch}")
        assert "OMP_NUM_THREADS" not in values


def test_a_script_that_spawns_its_own_processes_is_told_nodes_and_no_local_rank() -> None:
    second = environments(two_nodes(), "torch")[1]
    assert (second["RANK"], second["NODE_RANK"], second["WORLD_SIZE"]) == ("1", "1", "2")
    assert not {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"} & second.keys()


def test_torchrun_on_this_machine_alone_still_knows_how_many_to_start() -> None:
    which = gang(rank_table({"here": 1}), per_node=True, slots_per_node=(4,))
    (values,) = environments(which, "torch")
    assert (values["PET_NNODES"], values["PET_NPROC_PER_NODE"]) == ("1", "4")
    assert chief_ports(which, "torch") == ("torch",)
    assert "TF_CONFIG" not in values
    assert "HOROVOD_RANK" not in values


# JAX, Horovod, MPI


def test_jax_and_keras_meet_at_the_chief() -> None:
    values = environments(unequal(), "jax")[1]
    assert values["JAX_COORDINATOR_ADDRESS"] == "{host:0}:{port:jax}" == values["KERAS_DISTRIBUTION_JOB_ADDRESSES"]
    assert (values["JAX_NUM_PROCESSES"], values["JAX_PROCESS_ID"]) == ("3", "1")
    assert (values["KERAS_DISTRIBUTION_NUM_PROCESSES"], values["KERAS_DISTRIBUTION_PROCESS_ID"]) == ("3", "1")
    assert values["JAX_ENABLE_PREEMPTION_SERVICE"] == "false"


def test_a_script_for_kubeflows_jax_jobs_finds_the_names_it_knows_and_others_are_not_bothered_with_them() -> None:
    values = environments(unequal(), "jax")[1]
    assert (values["COORDINATOR_ADDRESS"], values["COORDINATOR_PORT"]) == ("{host:0}", "{port:jax}")
    assert (values["NUM_PROCESSES"], values["PROCESS_ID"]) == ("3", "1")
    assert "PROCESS_ID" not in environments(unequal(), "torch")[1]


@pytest.mark.parametrize(
    ("more", "devices"),
    [
        ({}, ["0", "0", "1"]),
        ({"gpus": (("0",), ("2", "5"))}, ["0", "0", "0"]),
        ({"gpus": (("0",), ("2", "5")), "see_gpus": "all"}, ["0", "0", "1"]),
    ],
)
def test_jax_takes_its_own_among_the_gpus_that_it_sees(more: dict[str, Any], devices: list[str]) -> None:
    assert [values["JAX_LOCAL_DEVICE_IDS"] for values in environments(unequal(**more), "jax")] == devices


def test_one_jax_process_a_node_takes_all_gpus_of_the_node() -> None:
    which = two_nodes(gpus=(("3",), ("2", "5")))
    assert [values["JAX_LOCAL_DEVICE_IDS"] for values in environments(which, "jax")] == ["0", "0,1"]


def test_horovod_counts_across_the_nodes_that_have_that_local_rank() -> None:
    every = environments(unequal(), "horovod")
    across = [(values["HOROVOD_CROSS_RANK"], values["HOROVOD_CROSS_SIZE"]) for values in every]
    assert across == [("0", "2"), ("1", "2"), ("0", "1")]
    assert [values["HOROVOD_LOCAL_RANK"] for values in every] == ["0", "0", "1"]
    assert [values["HOROVOD_HOSTNAME"] for values in every] == ["{host:0}", "{host:1}", "{host:2}"]
    rendezvous = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "{host:0}", "HOROVOD_GLOO_RENDEZVOUS_PORT": "{port:horovod}"}
    assert all(rendezvous.items() <= values.items() for values in every)
    assert all(values["HOROVOD_CONTROLLER"] == values["HOROVOD_CPU_OPERATIONS"] == "gloo" for values in every)
    assert all(int(values["HOROVOD_GLOO_TIMEOUT_SECONDS"]) > 30 for values in every)


def test_mpirun_of_both_generations_reaches_the_nodes_through_the_agent() -> None:
    values = environments(unequal(), "mpi")[0]
    assert values["OMPI_MCA_plm_rsh_agent"] == values["PRTE_MCA_plm_ssh_agent"] == "{file:rsh}"
    assert values["OMPI_MCA_orte_default_hostfile"] == values["PRTE_MCA_prte_default_hostfile"] == "{file:hostfile}"
    assert values["OMPI_MCA_orte_keep_fqdn_hostnames"] == "true"
    assert values["OMPI_ALLOW_RUN_AS_ROOT"] == values["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_mpirun_hands_no_foreign_rank_numbers_to_its_ranks() -> None:
    values = environments(unequal(), "mpi")[0]
    assert not {"RANK", "TF_CONFIG", "HOROVOD_RANK", "JAX_PROCESS_ID"} & values.keys()
    assert chief_ports(unequal(), "mpi") == ()
    assert not any(name.startswith(("OMPI", "PRTE")) for name in environments(unequal(), "torch")[0])


@pytest.mark.parametrize("which", [unequal(), two_nodes((1, 2))])
def test_the_hostfile_names_every_node_with_its_slots(which: Gang) -> None:
    assert hostfile(which) == "{host:0} slots=1\n{host:1} slots=2\n"


# GPUs


def seen(which: Gang, variable: str = "CUDA_VISIBLE_DEVICES") -> list[str | None]:
    return [values.get(variable) for values in environments(which)]


GPUS = (("4",), ("0", "GPU-8a1f"))


def test_each_rank_sees_its_own_gpu() -> None:
    assert seen(unequal(gpus=GPUS)) == ["4", "0", "GPU-8a1f"]
    assert seen(unequal(gpus=GPUS), "HIP_VISIBLE_DEVICES") == ["4", "0", "GPU-8a1f"]


def test_each_rank_sees_all_gpus_of_the_task_on_its_node() -> None:
    assert seen(unequal(gpus=GPUS, see_gpus="all")) == ["4", "0,GPU-8a1f", "0,GPU-8a1f"]


def test_a_process_that_stands_for_a_node_sees_all_of_them_in_any_case() -> None:
    assert seen(two_nodes(gpus=GPUS)) == ["4", "0,GPU-8a1f"]


def test_parameter_servers_and_the_evaluator_see_no_gpu() -> None:
    which = gang(rank_table({"here": 2}, ["ps", "evaluator"]), gpus=(("0", "1"),), see_gpus="all")
    assert seen(which) == ["0,1", "0,1", "", ""]


def test_where_nothing_is_known_about_gpus_nothing_is_hidden() -> None:
    assert seen(unequal()) == [None, None, None]


def test_where_gpus_are_not_wanted_all_are_hidden() -> None:
    assert seen(gang(rank_table({"here": 1}), gpus=((),))) == [""]


@pytest.mark.parametrize(
    ("chosen", "sight"),
    [("torch", "all"), ("horovod", "all"), ("mpi", "all"), ("tensorflow", "own"), ("jax", "own"), ("none", "own")],
)
def test_what_a_rank_sees_follows_the_framework_unless_the_user_says_otherwise(chosen: str, sight: str) -> None:
    assert settle_see_gpus(make_spec(command=()), chosen) == sight
    assert settle_see_gpus(make_spec(command=(), see_gpus="own"), chosen) == "own"
    assert settle_see_gpus(make_spec(command=(), see_gpus="all"), chosen) == "all"


def test_a_slot_that_is_shown_as_a_node_does_not_take_its_neighbours_gpu() -> None:
    assert settle_see_gpus(make_spec(command=(), slot_as_node=True), "torch") == "own"
    assert settle_see_gpus(make_spec(command=(), per_node=True), "jax") == "all"


# Who decides that the task is over


def test_every_rank_of_a_plain_gang_has_a_say_in_the_end() -> None:
    assert all(decides(unequal(), rank, "auto") for rank in unequal().table.ranks)


def test_with_parameter_servers_the_chief_alone_decides() -> None:
    which = with_servers(trainers=3, ps=1, evaluator=True)
    assert [rank.role for rank in which.table.ranks if decides(which, rank, "auto")] == ["chief"]


def test_nobody_waits_for_the_evaluator() -> None:
    which = with_servers(trainers=2, evaluator=True)
    assert [rank.role for rank in which.table.ranks if decides(which, rank, "auto")] == ["chief", "worker"]


def test_every_framework_is_found_by_its_name() -> None:
    assert [find_framework(framework.name) for framework in FRAMEWORKS] == list(FRAMEWORKS)
    assert find_framework("auto") is None
