"""pumasi data, as a user types it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumasi.cli.main import main
from pumasi.cli.verbs.data import _Progress
from tests.harness import Workplace


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("reviews.npz", x=np.zeros((25_000, 2), np.uint8), y=np.arange(25_000) % 2)
    return tmp_path


def test_a_table_is_shown_and_the_second_time_nothing_is_done(
    reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "split", "reviews.npz", "-n", "7"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["part", "rows"],
        *([f"{part}.npz", "3,572" if part < 3 else "3,571"] for part in range(7)),
    ]
    assert err == "pumasi: reviews-7 has 7 parts.\n"
    assert main(["data", "split", "reviews.npz", "-n", "7"]) == 0
    again, err = capsys.readouterr()
    assert again == out
    assert err == "pumasi: reviews-7 is already there, whole: 7 parts. Nothing to do.\n"


def test_programs_get_json(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "split", "reviews.npz", "-n", "2", "--to", "parts", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    manifest = json.loads(Path("parts/manifest.json").read_text())
    assert told == {
        "folder": "parts",
        "made": True,
        "mode": "split",
        "parts": [{"path": f"parts/{part['name']}", **part} for part in manifest["parts"]],
    }
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {**told, "made": False}


@pytest.mark.parametrize(
    ("words", "seed", "stratify"),
    [
        ([], None, None),
        (["--shuffle"], 0, None),
        (["--shuffle", "--seed", "7"], 7, None),
        (["--stratify"], None, "y"),
        (["--stratify", "--shuffle"], 0, "y"),
        (["--stratify", "x"], None, "x"),
        (["--stratify=x"], None, "x"),
    ],
)
def test_options_arrive(words: list[str], seed: int | None, stratify: str | None, reviews: Path) -> None:
    assert main(["data", "split", "reviews.npz", "-n", "2", *words]) == 0
    options = json.loads(Path("reviews-2/manifest.json").read_text())["options"]
    assert options == {"shuffle": seed is not None, "seed": seed, "stratify": stratify}


def test_copies_are_told_as_such(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "copy", "reviews.npz", "-n", "2"]) == 0
    assert capsys.readouterr().err == "pumasi: reviews-2-copies has 2 copies.\n"
    assert main(["data", "copy", "reviews.npz", "-n", "1"]) == 0
    assert capsys.readouterr().err == "pumasi: reviews-1-copies has 1 copy.\n"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "split or copy?", "Usage: pumasi data split FILE -n N"),
        (["spilt", "reviews.npz"], "not 'spilt'", "Did you mean 'pumasi data split'?"),
        (["split"], "needs FILE", "Usage: pumasi data split"),
        (["copy"], "needs FILE", "Usage: pumasi data copy"),
        (["split", "--stratify", "reviews.npz", "-n", "2"], "needs FILE, before --stratify", ""),
        (["split", "reviews.npz", "more.npz", "-n", "2"], "'more.npz' is too much", ""),
        (["split", "reviews.npz"], "needs -n", "-n 5"),
        (["split", "reviews.npz", "-n", "two"], "-n takes a whole number; 'two' is none", ""),
        (["split", "reviews.npz", "-n", "-1"], "-n takes a whole number", ""),
        (["split", "reviews.npz", "-n", "0"], "0 parts make no sense", ""),
        (["split", "reviews.npz", "-n", "30000"], "has 25,000 rows: too few for 30,000 parts", "-n 25000 at most"),
        (["split", "reviews.npz", "-n", "2", "--seed", "1"], "--shuffle was not given", "Add --shuffle"),
        (["split", "reviews.npz", "-n", "2", "--stratify=z"], "has no array z", "It has x, y"),
        (["copy", "reviews.npz", "-n", "2", "--shuffle"], "--shuffle is for split", "Leave out --shuffle"),
        (["split", "missing.npz", "-n", "2"], "There is no missing.npz", ""),
    ],
)
def test_what_makes_no_sense_is_a_sentence(
    words: list[str], message: str, hint: str, reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert hint in err
    assert sorted(path.name for path in reviews.iterdir()) == ["reviews.npz"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_is_told_after_a_second_and_then_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with _Progress(clock) as progress:
        for clock.now, done in ((0.5, 10), (1.5, 20), (2.0, 25), (7.0, 80)):
            progress("writing", done, 100)
        progress("waiting for another pumasi", 0, 1)
    lines = ["pumasi: writing: 20 %", "pumasi: writing: 80 %", "pumasi: waiting for another pumasi …"]
    assert capsys.readouterr() == ("", "\n".join(lines) + "\n")


def test_on_a_terminal_progress_is_a_bar_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    clock = Clock()
    with _Progress(clock) as progress:
        progress("writing", 1, 100)
        clock.now = 2.0
        progress("writing", 50, 100)
        progress("checking", 7, 100)
        assert progress._bar is not None
        (task,) = progress._bar.tasks
        assert (task.description, task.completed, task.total) == ("checking", 7, 100)
    assert capsys.readouterr().out == ""


@pytest.fixture
def small_disk(workplace: Workplace) -> Iterator[Path]:
    disk = workplace.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.root
@pytest.mark.parametrize("words", [["split"], ["split", "--shuffle"], ["copy"]])
def test_a_disk_that_is_full_is_told_and_left_as_it_was(
    words: list[str], workplace: Workplace, small_disk: Path
) -> None:
    np.savez(workplace.folder / "data.npz", x=np.zeros((3000, 1000), np.uint8))
    mode, *options = words
    done = workplace.run("data", mode, "data.npz", "-n", "2", "--to", "disk/parts", *options)
    assert done.returncode == 7
    assert "The disk is full" in done.stderr
    assert list(small_disk.iterdir()) == []


@pytest.mark.root
def test_a_disk_that_is_full_from_the_start_is_told_too(workplace: Workplace, small_disk: Path) -> None:
    np.savez(workplace.folder / "data.npz", x=np.arange(10))
    count = 0
    with contextlib.suppress(OSError):
        while True:
            (small_disk / str(count)).write_bytes(b"x")
            count += 1
    done = workplace.run("data", "split", "data.npz", "-n", "2", "--to", "disk/parts")
    assert done.returncode == 7
    assert "The disk is full" in done.stderr
    assert not [path for path in small_disk.iterdir() if not path.name.isdigit()]


RSS = """
import sys
from pathlib import Path
from pumasi.cli.main import main
code = main(sys.argv[1:])
print(*[line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")])
sys.exit(code)
"""
LARGE = 300 << 20
MOST_MB = 250


def large_npz(path: Path) -> None:
    rows = LARGE // 1000
    np.savez(path, x=np.broadcast_to(np.uint8(0), (rows, 1000)), y=np.arange(rows) % 3)


def large_lines(path: Path) -> None:
    rows: list[Any] = [f'{{"y": {row % 3}, "text": "{"x" * 1000}"}}\n' for row in range(1000)]
    if path.suffix == ".csv":
        texts = [f'"{"x" * 500}\n{"x" * 500}"', *["x" * 1000] * 9]
        rows = [f"{row % 3},{texts[row % 10]}\n" for row in range(1000)]
    with path.open("w") as file:
        file.write("y,text\n" if path.suffix == ".csv" else "")
        for _ in range(LARGE // 1_000_000):
            file.writelines(rows)


def large_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"{row}{'x' * 1000}" for row in range(10_000)]
    block = pa.table({"y": [row % 3 for row in range(10_000)], "text": texts})
    with pq.ParquetWriter(path, block.schema) as writer:
        for _ in range(LARGE // 10_000_000):
            writer.write_table(block)


@pytest.mark.parametrize(
    ("name", "make"),
    [("d.npz", large_npz), ("d.csv", large_lines), ("d.jsonl", large_lines), ("d.parquet", large_parquet)],
)
def test_a_file_need_not_fit_into_memory(name: str, make: Any, tmp_path: Path) -> None:
    """Shuffled and stratified, which takes the most; the peak is that of the whole process, with its imports."""
    make(tmp_path / name)
    words = ["data", "split", str(tmp_path / name), "-n", "3", "--shuffle", "--stratify", "--json"]
    done = subprocess.run([sys.executable, "-c", RSS, *words], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) / 1000 < MOST_MB


def test_the_commands_of_the_documentation_work_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    monkeypatch.chdir(tmp_path)
    np.savez("reviews.npz", x=np.arange(40), y=np.arange(40) % 2)
    Path("people.csv").write_text("name,city\n" + "a,Seoul\nb,Busan\n" * 6)
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "photos" / name / f"{number}.jpg").touch()
    commands = re.findall(r"^    pumasi (data .*?)(?:  +#.*)?$", page, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        assert main(shlex.split(command)) == 0, command + capsys.readouterr().err
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(snippet, {})
