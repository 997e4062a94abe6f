"""What a gang asks for in all, as quotas count it, and which quotas can never give it."""

from __future__ import annotations

from typing import Any

import pytest

from pumasi.pools.kubernetes.quotas import asked_by, never


def pod(**resources: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": resources}]}}


def quota(hard: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard}}


GANG = [
    pod(requests={"cpu": "500m", "memory": "4Gi"}, limits={"nvidia.com/gpu": "5", "memory": "4Gi"}),
    pod(requests={"cpu": "500m", "memory": "4Gi"}, limits={"nvidia.com/gpu": "1", "memory": "4Gi"}),
]


def test_a_gang_is_counted_as_a_whole() -> None:
    gigabytes = 8.0 * 2**30
    assert asked_by(GANG) == {
        "pods": 2,
        "count/pods": 2,
        "requests.cpu": 1.0,
        "cpu": 1.0,
        "requests.memory": gigabytes,
        "memory": gigabytes,
        "limits.memory": gigabytes,
        "requests.nvidia.com/gpu": 6.0,
        "limits.nvidia.com/gpu": 6.0,
    }


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        ({"pods": "1"}, "requested pods=2 in all, limited to pods=1"),
        ({"count/pods": "1", "cpu": "1"}, "requested count/pods=2 in all, limited to count/pods=1"),
        ({"requests.nvidia.com/gpu": "5"}, "requested requests.nvidia.com/gpu=6 in all, limited to"),
        ({"requests.memory": "6Gi"}, "requested requests.memory=8Gi in all, limited to requests.memory=6Gi"),
        ({"limits.memory": "500M"}, "requested limits.memory=8589.934592M in all, limited to limits.memory=500M"),
        ({"requests.cpu": "900m"}, "requested requests.cpu=1000m in all, limited to requests.cpu=900m"),
        ({"cpu": "0", "pods": "1"}, "requested cpu=1, pods=2 in all, limited to cpu=0, pods=1"),
    ],
)
def test_a_quota_that_can_never_give_it_is_named_with_both_amounts(hard: dict[str, str], words: str) -> None:
    assert never([quota({"pods": "9"}), quota(hard)], asked_by(GANG)).startswith(
        f"The quota team does not allow it: {words}"
    )


@pytest.mark.parametrize(
    "given",
    [
        quota({"pods": "2", "requests.cpu": "1", "requests.memory": "8Gi", "requests.nvidia.com/gpu": "6"}),
        quota({"services": "0", "limits.cpu": "0"}),
        quota({"pods": "1"}, scopes=["BestEffort"]),
        quota({"pods": "1"}, scopeSelector={"matchExpressions": [{"scopeName": "PriorityClass"}]}),
    ],
)
def test_a_quota_that_may_give_it_some_day_is_none_to_tell_of(given: dict[str, Any]) -> None:
    assert never([given], asked_by(GANG)) == ""
