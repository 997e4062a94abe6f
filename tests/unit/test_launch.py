"""A placement becomes what the agent of each node has to know."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pumasi.catalogue import make_spec
from pumasi.core.frameworks import PLACEHOLDER
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of


def configs(placement: dict[str, int], program: dict[str, Any] | None = None, **fields: Any) -> list[dict[str, Any]]:
    spec = make_spec(command=("train.py",), workdir="/work", slots=sum(placement.values()), **fields)
    what = Program(
        **{"command": ("python", "train.py"), "framework": "none", "because": "", "files": {}, **(program or {})}
    )
    addresses = [f"10.0.0.{number + 1}" for number in range(len(placement))]
    attempt = Attempt("run-aaaaa", 2, placement, {}, "secret", "nonce", "/runs/run-aaaaa", addresses)
    return agent_configs(spec, what, attempt, gang_of(spec, what, attempt))


placements = st.lists(st.integers(1, 5), min_size=1, max_size=12).map(
    lambda shares: {f"node-{number}": share for number, share in enumerate(shares)}
)


@given(placements, st.sampled_from(["none", "tensorflow", "torch", "jax", "horovod"]), st.integers(0, 2))
def test_every_rank_is_started_once_and_every_placeholder_can_be_filled(
    placement: dict[str, int], framework: str, servers: int
) -> None:
    made = configs(placement, {"framework": framework}, ps=servers)
    ranks = [rank["rank"] for config in made for rank in config["ranks"]]
    assert sorted(ranks) == list(range(sum(placement.values()) + servers))
    seats = [seat for config in made for seat in config["seats"]]
    known = {*map(str, seats), *made[0]["chief_ports"], "hostfile", "rsh"}
    for name in re.findall(PLACEHOLDER, json.dumps(made)):
        assert name[1] in known


def test_the_chief_is_first_and_sits_where_the_share_is_smallest() -> None:
    made = configs({"a": 5, "b": 1})
    assert [len(config["ranks"]) for config in made] == [1, 5]
    assert made[0]["names"] == ["b", "a"]
    assert made[0]["ranks"][0]["rank"] == 0


def test_all_agents_know_the_hub_and_the_secret_and_each_has_its_own_folder_and_mark() -> None:
    made = configs({"a": 2, "b": 1, "c": 3})
    assert {(config["hub"][0], config["secret"]) for config in made} == {("10.0.0.1", "secret")}
    for own in ("dir", "gang", "address", "node"):
        assert len({config[own] for config in made}) == 3
    assert {config["gang"].rpartition(".")[0] for config in made} == {"run-aaaaa.2.nonce"}


def test_the_users_own_variables_win() -> None:
    made = configs({"a": 1}, env={"PYTHONUNBUFFERED": "0", "MINE": "yes"})
    env = made[0]["ranks"][0]["env"]
    assert (env["PYTHONUNBUFFERED"], env["MINE"], env["PUMASI_ATTEMPT"], env["PUMASI_NODE"]) == ("0", "yes", "2", "a")


def test_with_parameter_servers_the_chief_decides_alone_and_an_evaluator_never_does() -> None:
    assert configs({"a": 3}, ps=1)[0]["deciders"] == [0]
    assert configs({"a": 2}, evaluator=True)[0]["deciders"] == [0, 1]
    assert configs({"a": 2})[0]["deciders"] == [0, 1]


def test_mpirun_starts_the_ranks_through_the_agent() -> None:
    made = configs({"a": 2, "b": 1}, {"framework": "mpi", "mpirun": "/usr/bin/mpirun"})
    launcher = made[0]["launcher"]
    assert launcher[:3] == ["/usr/bin/mpirun", "-np", "3"]
    assert launcher[-4:] == ["{self}", "rank", "python", "train.py"]
    assert made[0]["hostfile"] == "{host:0} slots=1\n{host:1} slots=2\n"


def test_a_launcher_of_the_users_runs_on_the_chiefs_node_only_and_can_name_all_nodes() -> None:
    made = configs({"a": 2, "b": 1}, {"framework": "mpi", "command": ("mpirun", "x"), "launcher": True})
    assert [len(config["ranks"]) for config in made] == [1, 0]
    assert (made[0]["deciders"], made[0]["total"], made[0]["launcher"]) == ([0], 1, None)
    assert [config["seats"] for config in made] == [[0], [1, 2]]
    assert made[0]["hostfile"] == "{host:0} slots=1\n{host:1} slots=2\n"
