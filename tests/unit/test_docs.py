"""What the documents say is what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pumasi.catalogue import json_schema
from pumasi.cli.grammar import SUMMARIES
from pumasi.core.outcome import Verdict
from pumasi.errors import DoesNotFit, NotFound, SystemTrouble, UsageError

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_schema_for_editors_is_the_spec() -> None:
    written = json.loads((CHECKOUT / "docs" / "pumasi.schema.json").read_text())
    assert written == json.loads(json.dumps(json_schema())), "write docs/pumasi.schema.json anew from json_schema()"


@pytest.mark.parametrize("name", ["README.md", "README.ko.md"])
def test_every_exit_code_is_documented(name: str) -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", (CHECKOUT / name).read_text(), re.MULTILINE)}
    errors = {error.exit_code for error in (UsageError, NotFound, SystemTrouble)}
    assert documented == {verdict.exit_code for verdict in Verdict} | errors | {70, 130}


def test_what_can_never_fit_has_the_documented_exit_code() -> None:
    told = " ".join((CHECKOUT / "docs" / "kubernetes.md").read_text().split())
    assert re.search(rf" {DoesNotFit.exit_code} [^0-9]*more than the cluster could ever give", told)


@pytest.mark.parametrize("name", ["README.md", "README.ko.md"])
def test_every_command_in_the_readme_exists(name: str) -> None:
    verbs = set(re.findall(r"pumasi ([a-z]+)\b", (CHECKOUT / name).read_text()))
    assert verbs <= set(SUMMARIES)


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "README.ko.md",
        "docs/architecture.md",
        "docs/average.md",
        "examples/imdb/README.md",
        "CONTRIBUTING.md",
    ],
)
def test_every_link_leads_somewhere(name: str) -> None:
    page = CHECKOUT / name
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "README.ko.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"make ([a-z-]+)\b", (CHECKOUT / name).read_text())) - {"sure"} <= targets
