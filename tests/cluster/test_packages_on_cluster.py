"""--requirements and --setup in pods: the image has neither the packages nor root's rights."""

from __future__ import annotations

import re

import pytest

from tests.cluster.place import Place, make_volume
from tests.cluster.subject import Namespace
from tests.harness import Workplace
from tests.wheels import make_wheel

pytestmark = pytest.mark.own

OFFLINE = ("--env", "PIP_FIND_LINKS=wheels", "--env", "PIP_NO_INDEX=1")


@pytest.fixture
def place(workplace: Workplace, shared_namespace: Namespace) -> Place:
    """With packages in the folder that travels."""
    make_wheel(workplace.folder / "wheels", "tinydep", "2.0")
    make_wheel(workplace.folder / "wheels", "tiny", "1.0", ["tinydep"])
    workplace.script(
        "import os, tiny, tinydep; print(os.environ['PUMASI_RANK'], tiny.__version__, tinydep.__version__)"
    )
    return Place(workplace, shared_namespace)


def test_every_node_installs_the_packages_before_any_rank_starts(place: Place) -> None:
    (place.folder / "requirements.txt").write_text("tiny\n")
    gang = ("--slots", "3", "--max-per-node", "2")
    done = place.train(*gang, "--requirements", "requirements.txt", "--setup", "tiny", *OFFLINE, "train.py")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {rank} 1.0 2.0" for rank in range(3)]
    before, _, _ = done.stderr.partition("running: 3 processes")
    assert len(re.findall(r"node-\d: installed 1 package of requirements.txt in [\d.]+ s with (?:pip|uv)", before)) == 2
    assert before.count("] tiny 1.0\n") == 2


def test_a_package_that_can_not_be_had_ends_the_gang_in_a_sentence(place: Place) -> None:
    (place.folder / "requirements.txt").write_text("nowhere-to-be-found\n")
    done = place.run("--slots", "2", "--max-per-node", "1", "--requirements", "requirements.txt", *OFFLINE, "train.py")
    assert done.returncode == 1
    assert re.search(r"Installing the packages of requirements.txt on node-\d failed, with exit code 1\.", done.stderr)
    assert "| ERROR: No matching distribution found for nowhere-to-be-found" in done.stderr
    place.wait_until_free()


def test_downloads_are_kept_on_the_volume_of_the_run(place: Place) -> None:
    make_volume(place.namespace, "downloads")
    (place.folder / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\ndependencies = ["tiny"]\n')
    place.script("import os, tiny; print(sorted(os.listdir('/files/pumasi/cache')))")
    shows = ("--setup", 'sh -c "mkdir -p $PIP_CACHE_DIR $UV_CACHE_DIR"')
    words = ("--requirements", "pyproject.toml", "--mount", "downloads:/files", *shows, *OFFLINE)
    assert place.train(*words, "train.py").stdout == "['pip', 'uv']\n"
