"""Quantities, names, tolerations, mounts and Secrets, as people write them and as Kubernetes wants them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.errors import SpecError
from pumasi.pools.kubernetes import notation
from pumasi.pools.kubernetes.notation import Mount, SecretUse, cores, mount, quantity, secret_use, size, toleration


@pytest.mark.parametrize(
    ("value", "number"),
    [(2, 2.0), (0.5, 0.5), ("2", 2.0), ("0.5", 0.5), ("500m", 0.5), (" 1500m ", 1.5), ("0.0001", 0.001), (1e-7, 0.001)],
)
def test_cpus_are_counted_in_whole_ones_or_in_thousandths(value: object, number: float) -> None:
    assert cores(value) == number


@pytest.mark.parametrize("value", [0, "0", "-1", "two", "", "1.5k", "m", None, True, [2], math.nan, math.inf, "1e3"])
def test_what_is_no_number_of_cpus_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="is no number of CPUs"):
        cores(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2**33, 2**33),
        ("8Gi", 8 * 2**30),
        ("500M", 500 * 10**6),
        ("16G", 16 * 10**9),
        ("1.5Gi", 3 * 2**29),
        ("2Ti", 2 * 2**40),
        ("2000k", 2_000_000),
        (" 8 Gi", 8 * 2**30),
    ],
)
def test_memory_is_counted_in_the_units_of_kubernetes(value: object, number: int) -> None:
    assert size(value) == number


@pytest.mark.parametrize(
    ("text", "meant"), [("8GB", "8G or 8Gi"), ("8g", "8G or 8Gi"), ("500m", "500M or 500Mi"), ("9K", "9k or 9Ki")]
)
def test_a_unit_of_another_tool_is_answered_with_those_of_kubernetes(text: str, meant: str) -> None:
    with pytest.raises(SpecError) as caught:
        size(text)
    assert caught.value.hint.startswith(f"did you mean {meant}?")


@pytest.mark.parametrize("value", ["much", "", "-8Gi", "8X", None, True, pytest.param(10**5000, id="huge"), math.nan])
def test_what_is_no_amount_of_memory_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="is no amount of memory"):
        size(value)


def test_whoever_writes_8_does_not_mean_8_bytes() -> None:
    with pytest.raises(SpecError, match="8 is no amount of memory that a slot can live with") as caught:
        size("8")
    assert caught.value.hint == "give from 1Mi to 1Pi"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (8 * 2**30, "8Gi"),
        (24 * 2**29, "12Gi"),
        (500 * 10**6, "500M"),
        (1234567, "1234567"),
        (2, "2"),
        (2.0, "2"),
        (2000.0, "2000"),
        (0.5, "500m"),
        (1.5, "1500m"),
        (0.0005, "1m"),
        (0, "0"),
    ],
)
def test_amounts_are_written_as_kubernetes_writes_them(amount: float, text: str) -> None:
    assert quantity(amount) == text


def test_three_times_a_tenth_is_not_rounded_up() -> None:
    assert quantity(0.1 * 3) == "300m"


@given(st.integers(2**20, 2**50))
def test_memory_that_is_written_is_the_memory_that_is_read(amount: int) -> None:
    assert size(quantity(amount)) == amount


@given(st.integers(1, 10**7).map(lambda thousandths: thousandths / 1000))
def test_cpus_that_are_written_are_the_cpus_that_are_read(amount: float) -> None:
    assert cores(quantity(amount)) == amount


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu:NoExecute", {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
        ("nvidia.com/gpu=a", {"key": "nvidia.com/gpu", "operator": "Equal", "value": "a"}),
        ("gpu=a:NoSchedule", {"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"}),
        ("gpu=:NoSchedule", {"key": "gpu", "operator": "Equal", "value": "", "effect": "NoSchedule"}),
        ("all", {"operator": "Exists"}),
        ("all:NoSchedule", {"operator": "Exists", "effect": "NoSchedule"}),
    ],
)
def test_a_toleration_is_written_as_the_taint_that_it_is_for(text: str, made: dict[str, str]) -> None:
    assert toleration(text) == made


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("gpu:noschedule", "an effect that Kubernetes does not know", "NoSchedule, PreferNoSchedule or NoExecute"),
        ("gpu:", "an effect that Kubernetes does not know", "NoSchedule"),
        ("", '"" is no key that Kubernetes takes', "domain.example/NAME"),
        ("a b", '"a b" is no key that Kubernetes takes', "domain.example/NAME"),
        ("a=b c", '"b c" is no value that a label can have', "at most 63"),
    ],
)
def test_what_is_no_toleration_is_refused(text: str, wrong: str, right: str) -> None:
    with pytest.raises(SpecError) as caught:
        toleration(text)
    assert wrong in caught.value.message
    assert right in caught.value.hint


def test_a_mount_is_a_claim_and_a_path_that_may_be_for_reading_only() -> None:
    assert mount("data:/data") == Mount("data", "/data", False)
    assert mount("data:/srv/data/:ro") == Mount("data", "/srv/data", True)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("data", "is no volume to mount"),
        (":/data", "is no volume to mount"),
        ("data:", "is no volume to mount"),
        ("data:/data:rw", "is no volume to mount"),
        ("data:data", '"data" is no path in a pod'),
        ("data:/", '"/" is no path in a pod'),
        ("data:/a/../b", "is no path in a pod"),
        ("data:/tmp/pumasi", "is where Pumasi keeps its own files"),
        ("data:/tmp//pumasi/work", "is where Pumasi keeps its own files"),
        ("My_Data:/data", "can't name an object of a cluster"),
    ],
)
def test_what_is_no_mount_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(SpecError, match=wrong):
        mount(text)


def test_variables_come_from_all_keys_of_a_secret_or_from_one() -> None:
    assert secret_use("hub") == SecretUse("hub")
    assert secret_use("HF_TOKEN=hub/token") == SecretUse("hub", "HF_TOKEN", "token")


@pytest.mark.parametrize("text", ["", "Hub", "A=hub", "A=hub/", "=hub/key", "1A=hub/key", "A=hub/a b", "A=Hub/key"])
def test_what_names_no_secret_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        secret_use(text)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (notation.namespace, ["default", "team-a", "9"], ["", "Team", "a.b", "-a", "a" * 64]),
        (notation.dns_name, ["a", "my.claim-1"], ["", "A", ".a", "a..b", "a" * 254]),
        (
            notation.qualified,
            ["a", "A_b.c", "example.com/a", "a" * 63],
            ["", "/a", "a/", "a/b/c", "A.com/a", "a" * 64, "-a", "é"],
        ),
        (notation.own_key, ["team", "notpumasi.dev/run"], ["pumasi.dev/run", "x.pumasi.dev/run", ""]),
        (notation.label_value, ["", "a", "A.b_c-1"], ["a b", "-a", "a/b", "a" * 64]),
        (notation.resource, ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"], ["gpu", "", "nvidia.com/", "a b/c"]),
        (
            notation.image,
            [
                "python:3.12-slim",
                "ghcr.io/team/train:1.4",
                "localhost/x",
                "host:5000/a/b__c",
                "x@sha256:" + "0" * 64,
                "[::1]:5000/x",
            ],
            ["", "a b", "ghcr.io/Team/train", "Team/train", "x:", "-x", "https://ghcr.io/x", "x" * 513],
        ),
    ],
)
def test_names_are_those_that_kubernetes_takes(check: Callable[[str], str], good: list[str], bad: list[str]) -> None:
    assert [check(text) for text in good] == good
    for text in bad:
        with pytest.raises(SpecError):
            check(text)


@pytest.mark.parametrize(
    "read", [cores, size, toleration, mount, secret_use, notation.image, notation.qualified, notation.dns_name]
)
@given(text=st.text(max_size=100))
def test_whatever_is_written_is_understood_or_refused_with_what_would_be_right(
    read: Callable[[str], object], text: str
) -> None:
    hint = "none is needed"
    try:
        read(text)
    except SpecError as error:
        hint = error.hint
    assert hint
