"""Pools and flows own what is theirs: nobody else asks which one it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pumasi

SOURCE = Path(pumasi.__file__).parent
CLUSTERS = ("kube/", "pools/kubernetes/")


def mentions(pattern: str, *allowed: str) -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(allowed)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]


def test_only_the_pool_of_clusters_speaks_of_them_by_name() -> None:
    """But for the line that registers it, and what older stores have written."""
    assert mentions("k8s", *CLUSTERS, "registry.py", "store/schema.py") == []


def test_nobody_asks_where_a_run_lives() -> None:
    assert mentions("is_remote") == []
    assert mentions(r"\.pool *(==|!=|in )", *CLUSTERS, "pools/local/") == []


@pytest.mark.parametrize("word", ["kubectl", "kubeconfig", "Kubernetes"])
def test_words_of_clusters_stay_where_clusters_are(word: str) -> None:
    allowed = (
        *CLUSTERS,
        "agent/",
        "cli/grammar.py",
        "cli/help.py",
        "cli/verbs/",
        "core/",
        "doctor.py",
        "runs/config.py",
    )
    assert mentions(word, *allowed, "errors.py", "pools/pool.py") == []


def test_nobody_asks_which_flow_a_run_has() -> None:
    assert mentions(r"strategy *(==|!=)") == []
