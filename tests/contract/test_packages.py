"""--requirements and --setup on this machine, with the real pip and the real uv."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.harness import Workplace, wait_for
from tests.wheels import make_wheel

WHO = "import os, sys, tiny; print(os.environ['PUMASI_RANK'], tiny.__version__, sys.prefix)"
WITH_PIP = "--prefer-binary\n"
"""An option in the list, which only pip understands in all its forms."""


@pytest.fixture
def place(workplace: Workplace) -> Workplace:
    """With an index that has tiny, which needs rich; that one is nowhere but in the Python that runs the tests."""
    wheels = workplace.folder / "wheels"
    make_wheel(wheels, "tiny", "1.0", ["rich"])
    workplace.environ |= {"PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1"}
    workplace.environ |= {"UV_CACHE_DIR": str(workplace.folder / "uv"), "UV_LINK_MODE": "copy"}
    workplace.script(WHO)
    return workplace


def require(place: Workplace, text: str, name: str = "requirements.txt") -> None:
    (place.folder / name).write_text(text)


def environments(place: Workplace) -> list[Path]:
    return [each.parent for each in place.home.glob("environments/*/complete")]


@pytest.mark.parametrize(("options", "tool"), [("", "uv"), (WITH_PIP, "pip")])
def test_packages_are_installed_on_top_of_those_that_are_there_and_kept_for_the_next_run(
    place: Workplace, options: str, tool: str
) -> None:
    require(place, f"{options}tiny\n")
    first = place.run("run", "--requirements", "requirements.txt", "--slots", "2", "train.py")
    (environment,) = environments(place)
    assert sorted(first.stdout.splitlines()) == [f"[{rank}] {rank} 1.0 {environment}" for rank in (0, 1)]
    assert "· 1 package of requirements.txt" in first.stderr
    assert re.search(rf"installed 1 package of requirements.txt in [\d.]+ s with {tool}", first.stderr)
    assert not list(environment.glob("lib/*/site-packages/rich"))

    again = place.run("run", "--requirements", "requirements.txt", "train.py")
    assert again.stdout == f"0 1.0 {environment}\n"
    assert "install" not in again.stderr
    assert not list(Path(sys.prefix).glob("lib/*/site-packages/tiny*"))


def test_nodes_that_share_a_disk_install_once(place: Workplace) -> None:
    require(place, "tiny\n")
    words = ("--requirements", "requirements.txt", "--setup", "tiny", "--slots", "3", "--nodes", "2,1")
    done = place.run("run", *words, "train.py")
    assert len(done.stdout.splitlines()) == 3, done.stderr
    assert done.stderr.count("installed 1 package") == 1
    assert done.stderr.count("running tiny") == 1
    assert re.search(r"\[\d\] tiny 1.0\n", done.stderr)


def test_another_list_is_another_environment(place: Workplace) -> None:
    make_wheel(place.folder / "wheels", "tiny", "2.0")
    for text in ("tiny<2\n", "tiny\n"):
        require(place, text)
        done = place.run("run", "--requirements", "requirements.txt", "train.py")
        assert done.stdout.startswith("0 1.0" if "<" in text else "0 2.0")
    assert len(environments(place)) == 2


def test_another_index_is_another_environment(place: Workplace) -> None:
    make_wheel(place.folder / "wheels2", "tiny", "2.0")
    require(place, "tiny\n")
    words = ("--requirements", "requirements.txt", "train.py")
    assert place.run("run", *words).stdout.startswith("0 1.0")
    elsewhere = f"PIP_FIND_LINKS={place.folder / 'wheels2'}"
    assert place.run("run", "--env", elsewhere, *words).stdout.startswith("0 2.0")
    assert len(environments(place)) == 2
    assert place.run("run", "--env", "PIP_FIND_LINKS=wheels2", *words).stdout.startswith("0 2.0")
    assert len(environments(place)) == 2, "a folder of that name is another one elsewhere"


def test_a_broken_environment_is_made_anew(place: Workplace) -> None:
    require(place, "tiny\n")
    place.run("run", "--requirements", "requirements.txt", "train.py")
    (environment,) = environments(place)
    shutil.rmtree(environment / "bin")
    done = place.run("run", "--requirements", "requirements.txt", "train.py")
    assert done.stdout == f"0 1.0 {environment}\n"


def test_a_package_that_is_in_the_folder_is_installed_for_this_run_alone(place: Workplace) -> None:
    """The file may change while its name does not."""
    require(place, "./wheels/tiny-1.0-py3-none-any.whl\n")
    done = place.run("run", "--requirements", "requirements.txt", "train.py")
    assert done.stdout.startswith("0 1.0")
    assert environments(place) == []


def test_what_can_not_be_installed_ends_the_run_in_a_sentence_with_the_last_lines(place: Workplace) -> None:
    require(place, f"{WITH_PIP}tiny\nnowhere-to-be-found\n")
    done = place.run("run", "--requirements", "requirements.txt", "--slots", "2", "--nodes", "1,1", "train.py")
    assert done.returncode == 1
    assert re.search(
        r"failed after .*: Installing the packages of requirements.txt on node-\d failed, with exit code 1\.",
        done.stderr,
    )
    assert "| ERROR: No matching distribution found for nowhere-to-be-found" in done.stderr
    assert "Check the name and the version" in done.stderr
    assert done.stdout == ""
    assert environments(place) == []


def test_where_uv_fails_pip_has_the_last_word(place: Workplace) -> None:
    require(place, "nowhere-to-be-found\n")
    done = place.run("run", "--requirements", "requirements.txt", "train.py")
    assert done.returncode == 1
    assert "No solution found" in done.stderr
    assert "| ERROR: No matching distribution found for nowhere-to-be-found" in done.stderr


def test_commands_run_in_the_working_folder_with_the_environment_of_the_run(place: Workplace) -> None:
    require(place, "tiny\n")
    place.script(
        "import os, sys; open('prepared', 'a').write(sys.prefix + '\\n'); print(os.environ['GREETING'])", "prepare.py"
    )
    setup = ("--setup", "prepare.py", "--setup", 'sh -c "tiny; echo $GREETING twice"')
    words = ("--requirements", "requirements.txt", *setup, "--env", "GREETING=hello")
    done = place.run("run", *words, "train.py")
    (first,) = (place.folder / "prepared").read_text().splitlines()
    assert done.stderr.index("\nhello\n") < done.stderr.index("\ntiny 1.0\n") < done.stderr.index("\nhello twice\n")
    assert done.stdout == f"0 1.0 {first}\n"

    again = place.run("run", *words, "train.py")
    assert "installed" not in again.stderr, "the packages are shared"
    prepared = (place.folder / "prepared").read_text().splitlines()
    assert len(set(prepared)) == len(prepared) == 2, "each run prepares its folder, in an environment of its own"


@pytest.mark.parametrize("requirements", [(), ("--requirements", "requirements.txt")])
def test_what_commands_install_is_for_one_run_alone_and_stays_on_a_restart(
    place: Workplace, requirements: tuple[str, ...]
) -> None:
    """Two projects with the same list and the same command, which installs what is in the folder. One runs while the
    other one waits to fail and to be started again."""
    for name in ("first", "second"):
        (place.folder / name).mkdir()
        require(place, "tiny\n", f"{name}/requirements.txt")
        place.script(f"NAME = {name!r}", f"{name}/parts.py")
        place.script(
            """
            import shutil, sysconfig
            print("installing")
            shutil.copy("parts.py", f"{sysconfig.get_path('purelib')}/mine.py")
            """,
            f"{name}/install.py",
        )
        place.script(
            """
            import os, pathlib, sys, time, mine
            print(mine.NAME, flush=True)
            if mine.NAME == "first" and os.environ["PUMASI_ATTEMPT"] == "0":
                while not pathlib.Path("go").exists():
                    time.sleep(0.02)
                sys.exit(1)
            """,
            f"{name}/train.py",
        )
    words = ("run", *requirements, "--setup", "install.py", "--restarts", "1", "train.py")
    waiting = place.start(*words, cwd=place.folder / "first")
    wait_for(place.ranks, "the first run")
    assert place.run(*words, cwd=place.folder / "second").stdout == "second\n"
    (place.folder / "first" / "go").touch()
    out, errors = waiting.communicate(timeout=60)
    assert out == "first\nfirst\n", errors
    assert errors.count("\ninstalling\n") == 1
    assert not list(place.home.glob("environments/*/lib/*/site-packages/mine.py"))


def test_commands_that_failed_run_again_in_a_new_environment(place: Workplace) -> None:
    fails = 'sh -c "test ! -e $VIRTUAL_ENV/left && touch $VIRTUAL_ENV/left && ls once || { touch once; exit 1; }"'
    place.script("print('trained')")
    done = place.run("run", "--setup", fails, "--restarts", "1", "train.py")
    assert done.stdout == "trained\n", done.stderr


def test_programs_of_the_packages_see_what_commands_install(place: Workplace) -> None:
    require(place, "tiny\n")
    words = ("--requirements", "requirements.txt", "--setup", "true")
    done = place.run("run", *words, "--", "sh", "-c", "head -n 3 $(command -v tiny) | grep -o '/.*/bin/python'; tiny")
    assert re.fullmatch(r"/.*/runs/.*/tmp/environment/bin/python\ntiny 1.0\n", done.stdout), done.stderr


def test_a_python_that_prints_when_it_starts_disturbs_nobody(place: Workplace) -> None:
    noisy = place.folder / "noisy"
    noisy.write_text(f'#!/bin/sh\necho hello from the image\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o755)
    done = place.run("run", "--python", "./noisy", "--setup", "true", "--", sys.executable, "-c", "print('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_programs_beside_the_python_use_the_environment(place: Workplace) -> None:
    """As torchrun does: it starts the Python that its first line names."""
    require(place, "tiny\n")
    place.script("import sys, tiny; print(sys.prefix)", "test_it.py")
    done = place.run("run", "--requirements", "requirements.txt", "--", "pytest", "-q", "-s", "test_it.py")
    assert str(environments(place)[0]) in done.stdout, done.stderr


def test_a_command_that_fails_ends_the_run(place: Workplace) -> None:
    done = place.run("run", "--setup", 'sh -c "echo no luck; exit 7"', "train.py")
    assert done.returncode == 1
    assert "The set-up command `sh -c 'echo no luck; exit 7'` on" in done.stderr
    assert "failed, with exit code 7." in done.stderr
    assert "  | no luck\n" in done.stderr
    missing = place.run("run", "--setup", "no-such-program", "train.py")
    assert "  | no-such-program: No such file or directory\n" in missing.stderr


def test_a_run_that_is_stopped_while_it_installs_leaves_nothing_behind(place: Workplace) -> None:
    process = place.start("run", "--setup", "sleep 600", "--slots", "2", "--nodes", "1,1", "train.py")
    wait_for(lambda: "sleep 600 " in place.processes().values(), "the command")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5, errors


def test_what_takes_longer_than_the_start_may_is_ended_at_once_on_every_node(place: Workplace) -> None:
    words = ("--start-timeout", "2s", "--grace", "600s", "--slots", "2", "--nodes", "1,1")
    done = place.run("run", *words, "--setup", "sleep 600", "train.py")
    assert done.returncode == 3, "it did not wait for the grace"
    assert "The gang was not whole within 2 s" in done.stderr
    assert "--start-timeout" in done.stderr


def test_trainers_that_train_apart_and_the_steps_between_them_use_one_environment(place: Workplace) -> None:
    require(place, "tiny\n")
    place.script("""
        import sys, numpy, tiny
        numpy.savez(sys.argv[1], w=numpy.ones(3))
    """)
    words = ("--strategy", "average", "--slots", "3", "--requirements", "requirements.txt", "--save", "final.npz")
    done = place.run("run", *words, "train.py", "{model}.npz")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("installed 1 package") == 1


def test_a_dry_run_shows_it_and_installs_nothing(place: Workplace) -> None:
    require(place, "tiny\n")
    done = place.run("run", "--requirements", "requirements.txt", "--setup", "tiny", "--dry-run", "--json", "train.py")
    told = json.loads(done.stdout)["setup"]
    assert (told["requirements"]["count"], told["commands"]) == (1, [["tiny"]])
    assert not (place.home / "environments").exists()
