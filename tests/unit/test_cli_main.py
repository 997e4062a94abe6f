"""The command line as a shell sees it: real processes, their streams and their exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pumasi.cli import main
from pumasi.cli.grammar import EXIT_CODES, SUMMARIES, load
from pumasi.cli.help import reference
from pumasi.cli.parsing import Arguments
from pumasi.cli.verbs import completion
from pumasi.core.outcome import Verdict
from pumasi.errors import PumasiError

ROOT = Path(__file__).parents[2]


def pumasi(*words: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pumasi", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=home,
        env={**os.environ, "PUMASI_HOME": str(home / "home"), **environ},
    )


def test_pumasi_alone_says_how_to_begin(tmp_path: Path) -> None:
    answer = pumasi(home=tmp_path)
    assert answer.returncode == 0
    assert "pumasi run train.py" in answer.stdout
    assert len(answer.stdout.splitlines()) < 10


def test_help_names_every_verb_and_every_exit_code(tmp_path: Path) -> None:
    answer = pumasi("--help", home=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    for name, summary in SUMMARIES.items():
        assert f"{name:<12}{summary}" in answer.stdout
    for code, meaning in EXIT_CODES:
        assert f"{code:<5}{meaning}" in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 100


@pytest.mark.parametrize("verb", SUMMARIES)
def test_help_of_a_verb_names_its_options_and_shows_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: pumasi " + verb)
    for option in load(verb).options:
        assert all(name in text for name in option.names)
    assert "Examples:" in text
    assert max(map(len, text.splitlines())) <= 100
    assert main.main(["help", verb]) == 0
    assert capsys.readouterr().out == text


def test_the_version_is_told(tmp_path: Path) -> None:
    assert pumasi("--version", home=tmp_path).stdout.startswith("pumasi ")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["rnu", "train.py"], "Pumasi has no verb 'rnu'.", "Did you mean 'pumasi run'?"),
        (["zebra"], "Pumasi has no verb 'zebra'.", "'pumasi --help' lists them."),
        (["train.py"], "Pumasi has no verb 'train.py'.", "To run that script: pumasi run train.py"),
        (["--slots", "3"], "Pumasi has no option --slots.", "A verb comes first"),
        (["run", "--slot", "3", "x.py"], "'pumasi run' has no option --slot.", "Did you mean --slots?"),
        (["run", "missing.py"], "missing.py", ""),
        (["run", "--slots", "0", "x.py"], "--slots", ""),
        (["run", "--slots", "-1", "x.py"], "--slots", ""),
        (["run", "--slots", "1000000000", "x.py"], "--slots", ""),
        (["run", "--slots", "two", "x.py"], "--slots", ""),
        (["run", "--gpus", "two", "x.py"], "--gpus", ""),
        (["run", "--gpus", "2", "--slots", "3", "x.py"], "--gpus", ""),
        (["run", "--env", "PUMASI_TEST_UNSET", "x.py"], "PUMASI_TEST_UNSET", "--env PUMASI_TEST_UNSET=…"),
        (["run", "--env", "PUMASI_RANK=5", "x.py"], "PUMASI_RANK is what Pumasi tells each process", ""),
        (["run", "--on", "moon", "x.py"], "--on", ""),
        (["run", "--on", "kubernetes", "x.py"], "did you mean k8s?", ""),
        (["run", "--image", "img", "x.py"], "--image: it is for clusters, but --on is local; add --on k8s", ""),
        (["run", "--on", "k8s", "--memory", "8GB", "x.py"], "--memory", "did you mean 8G or 8Gi?"),
        (["run", "--on", "k8s", "--label", "team", "x.py"], "--label", "give KEY=VALUE"),
        (["run"], "nothing to run", ""),
        (["run", "--nproc_per_node=4", "x.py"], "no option --nproc_per_node.", "--slots N"),
        (["run", "--nproc-per-node", "4", "x.py"], "no option --nproc-per-node.", "--slots N"),
        (["run", "--nnodes", "2", "x.py"], "no option --nnodes.", "--per-node"),
        (["run", "--num-workers", "2", "x.py"], "no option --num-workers.", "stands after the script"),
        (["run", "--num-processes", "2", "x.py"], "no option --num-processes.", "--slots N"),
        (["run", "--ntasks", "2", "x.py"], "no option --ntasks.", "--slots N"),
        (["run", "-n", "2", "x.py"], "-n is the namespace", "--slots 2"),
        (["submit", "x.py"], "no verb 'submit'", "pumasi run -d train.py"),
        (["launch", "x.py"], "no verb 'launch'", "pumasi run train.py"),
        (["queue"], "no verb 'queue'", "'pumasi ps'"),
        (["top"], "no verb 'top'", "'pumasi nodes --watch'"),
        (["init"], "no verb 'init'", "pumasi run train.py"),
        (["exec", "train-1", "sh"], "no verb 'exec'", "kubectl exec -it POD"),
        (["cp", "train-1:x", "x"], "no verb 'cp'", "kubectl cp POD:FILE FILE"),
    ],
)
def test_what_makes_no_sense_is_a_sentence_and_exit_code_2(
    words: list[str], message: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text("print('hello')\n")
    answer = pumasi(*words, home=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert message in answer.stderr
    assert hint in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("word", "verb"),
    [("ls", "ps"), ("list", "ps"), ("rm", "delete"), ("cancel", "stop"), ("kill", "stop"), ("describe", "show")],
)
def test_a_plain_synonym_of_other_tools_works_and_is_not_listed(
    word: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([word, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: pumasi {verb}")
    assert word not in SUMMARIES
    assert f" {word} " not in completion.bash()


def test_kill_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Arguments({"force": [""]}, ["train-x7k2p"])
    monkeypatch.setattr("pumasi.cli.verbs.stop.main", lambda arguments: 5 if arguments == right else 0)
    assert main.main(["kill", "train-x7k2p"]) == 5


def test_a_reader_that_has_seen_enough_is_no_mistake(tmp_path: Path) -> None:
    environ = {**os.environ, "PUMASI_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "pumasi", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_under_stdout_is_a_sentence_and_exit_code_7(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "pumasi", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert answer.returncode == 7
    assert answer.stderr == "pumasi: This machine stands in the way: No space left on device.\n"


def test_a_terminal_without_unicode_is_no_reason_to_fail(tmp_path: Path) -> None:
    answer = pumasi("--help", home=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert answer.returncode == 0
    assert "loss, accuracy, ?" in answer.stdout


def test_ctrl_c_ends_a_verb_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("pumasi.cli.verbs.ps.main", interrupt)
    assert main.main(["ps"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_ours_is_one_sentence_and_a_file_with_the_details(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def blunder(_: object) -> int:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("pumasi.cli.verbs.ps.main", blunder)
    monkeypatch.setenv("PUMASI_HOME", str(tmp_path))
    assert main.main(["ps"]) == 70
    out, err = capsys.readouterr()
    (report,) = tmp_path.glob("mistake-*.txt")
    assert out == ""
    assert err.startswith("pumasi: This is a mistake in Pumasi, not yours: ZeroDivisionError.\n")
    assert str(report) in err
    assert "Traceback" not in err
    assert "ZeroDivisionError: of all things" in report.read_text()


def test_a_mistake_is_reported_where_the_home_can_not_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def blunder(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("pumasi.cli.verbs.ps.main", blunder)
    monkeypatch.setenv("PUMASI_HOME", "/dev/null/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main.main(["ps"]) == 70
    assert str(next(tmp_path.glob("mistake-*.txt"))) in capsys.readouterr().err


def test_a_home_that_can_not_be_made_is_a_sentence_and_exit_code_7(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, not a folder")
    answer = pumasi("ps", home=tmp_path)
    assert answer.returncode == 7
    assert "Traceback" not in answer.stderr
    assert answer.stderr.startswith("pumasi: ")


def test_every_exit_code_of_an_error_and_of_an_outcome_is_documented() -> None:
    documented = {code for code, _ in EXIT_CODES}
    kinds = [PumasiError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        assert kind.exit_code in documented
    assert {verdict.exit_code for verdict in Verdict} <= documented


def test_the_reference_is_up_to_date() -> None:
    message = "docs/cli.md is stale: write it anew with `python -m pumasi.cli.help > docs/cli.md`"
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == reference(), message


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_every_verb_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in SUMMARIES:
        assert name in script
        for option in load(name).options:
            assert option.key in script


def complete_in_bash(*words: str, ids: str = "") -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"""
{completion.bash()}
pumasi() {{ printf '%s\\n' {ids}; }}
COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
_pumasi
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return answer.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_verbs_options_choices_and_runs() -> None:
    assert complete_in_bash("pumasi", "st") == ["stop"]
    assert complete_in_bash("pumasi", "run", "--sl") == ["--slots", "--slot-as-node"]
    assert complete_in_bash("pumasi", "run", "--framework", "t") == ["tensorflow", "torch"]
    assert complete_in_bash("pumasi", "run", "--on", "k") == ["k8s"]
    assert complete_in_bash("pumasi", "nodes", "--w") == ["--watch"]
    assert complete_in_bash("pumasi", "logs", "tr", ids="train-x7k2p imdb-abcde") == ["train-x7k2p"]
    assert complete_in_bash("pumasi", "logs", "--fo") == ["--follow"]
    assert complete_in_bash("pumasi", "completion", "z") == ["zsh"]
    assert complete_in_bash("pumasi", "run", "tr", ids="train-x7k2p") == []


def test_ps_answers_json_on_an_empty_home(tmp_path: Path) -> None:
    answer = pumasi("ps", "--json", home=tmp_path)
    assert (answer.returncode, json.loads(answer.stdout)) == (0, [])


@pytest.mark.parametrize("words", [[], ["--help"], ["ps"]])
def test_quick_answers_do_not_wait_for_large_imports(words: list[str], tmp_path: Path) -> None:
    """Each of these takes as long to import as the whole answer may take."""
    code = f"import sys; from pumasi.cli.main import main; main({words!r}); print(sorted(sys.modules), file=sys.stderr)"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PUMASI_HOME": str(tmp_path)},
    )
    loaded = answer.stderr
    for module in ("pydantic", "rich", "asyncio", "dataclasses", "yaml", "argparse", "subprocess"):
        assert f"'{module}'" not in loaded
