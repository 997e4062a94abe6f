"""Programs that are no scripts: what their files tell about MPI, and which mpirun starts them."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pumasi.catalogue import make_spec
from pumasi.core.frameworks.detect import detect
from pumasi.core.frameworks.elf import Linked, read_linked
from pumasi.core.frameworks.mpi import Build, build_of_library, build_of_mpirun
from pumasi.errors import UsageError
from pumasi.runs.binaries import MOST_LIBRARIES, find_libraries, find_mpirun
from pumasi.runs.locate import find_program

NEEDED, STRINGS, RPATH, RUNPATH = 1, 5, 15, 29
BASE = 0x400000


def elf(*needed: str, rpath: str = "", runpath: str = "", bits: int = 64, order: str = "<", more: bytes = b"") -> bytes:
    """The smallest file that names these libraries as a linker would write them: headers, entries, strings."""
    strings = b"\0"
    entries = []
    for tag, text in [*((NEEDED, name) for name in needed), (RPATH, rpath), (RUNPATH, runpath)]:
        if text:
            entries.append((tag, len(strings)))
            strings += text.encode() + b"\0"
    word, head, segment = ("Q", 64, 56) if bits == 64 else ("I", 52, 32)
    start = head + 2 * segment
    entries += [(STRINGS, BASE + start + (len(entries) + 2) * struct.calcsize(2 * word)), (0, 0)]
    dynamic = b"".join(struct.pack(order + 2 * word, *entry) for entry in entries)
    size = start + len(dynamic) + len(strings)

    def header(kind: int, offset: int, length: int) -> bytes:
        if bits == 64:
            return struct.pack(f"{order}IIQQQQQQ", kind, 4, offset, BASE + offset, 0, length, length, 8)
        return struct.pack(f"{order}IIIIIIII", kind, offset, BASE + offset, 0, length, length, 4, 4)

    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    fields = (3, 62, 1, 0, head, 0, 0, head, segment, 2, 0, 0, 0)
    head_bytes = ident + struct.pack(f"{order}HHI3{word}IHHHHHH", *fields)
    return head_bytes + header(1, 0, size) + header(2, start, len(dynamic)) + dynamic + strings + more


def open_mpi(version: str) -> bytes:
    return elf("libc.so.6", more=b"\0junk\0v" + version.encode() + b"\0Open MPI\0")


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_libraries_of_a_program_are_read_from_its_file(bits: int, order: str) -> None:
    data = elf("libmpi.so.40", "libc.so.6", rpath="/opt/a:/opt/b", runpath="$ORIGIN/../lib", bits=bits, order=order)
    assert read_linked(data) == Linked(("libmpi.so.40", "libc.so.6"), ("/opt/a", "/opt/b"), ("$ORIGIN/../lib",))


@pytest.mark.skipif(sys.platform != "linux", reason="programs of other systems are no ELF files")
def test_a_program_of_this_machine_is_read() -> None:
    needed = read_linked(Path(sys.executable).resolve().read_bytes())
    assert needed is not None
    assert any(name.startswith("libc.") for name in needed.needed)


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + bytes(60), b"MZ" * 100])
def test_what_is_no_program_names_no_library(data: bytes) -> None:
    assert read_linked(data) is None


@given(st.binary(max_size=400), st.integers(0, 300), st.binary(max_size=16))
@example(b"", 32, b"\xff" * 8)
@example(b"", 54, b"\xff" * 4)
def test_no_bytes_can_upset_the_reader(junk: bytes, at: int, patch: bytes) -> None:
    data = elf("libmpi.so.40", "libc.so.6", runpath="/opt")
    read_linked(data[:at] + patch + data[at + len(patch) :] + junk)
    read_linked(data[:at])
    read_linked(b"\x7fELF\x02\x01" + junk)


# The loader's ways


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin").mkdir()
    return tmp_path


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("origin", ["$ORIGIN/../lib", "${ORIGIN}/../lib"])
def test_a_library_is_found_beside_the_program(folder: Path, origin: str) -> None:
    program = write(folder / "bin" / "hello", elf("libmpi.so.40", runpath=origin))
    write(folder / "lib" / "libmpi.so.40", open_mpi("5.0.11"))
    found = find_libraries(program, {})["libmpi.so.40"]
    assert found is not None
    assert found.samefile(folder / "lib" / "libmpi.so.40")


def test_what_a_library_needs_is_needed_too(folder: Path) -> None:
    program = write(folder / "bin" / "solve", elf("libpetsc.so.3", rpath=str(folder / "lib")))
    write(folder / "lib" / "libpetsc.so.3", elf("libmpi.so.40", "libpetsc.so.3"))
    assert list(find_libraries(program, {}))[:2] == ["libpetsc.so.3", "libmpi.so.40"]


def test_the_users_library_path_stands_between_the_two_of_the_program(folder: Path) -> None:
    for place in ("told", "rpath", "runpath"):
        write(folder / place / "libmpi.so.40", open_mpi("5.0.11"))
    told = {"LD_LIBRARY_PATH": str(folder / "told")}
    late = write(folder / "late", elf("libmpi.so.40", runpath=str(folder / "runpath")))
    early = write(folder / "early", elf("libmpi.so.40", rpath=str(folder / "rpath")))
    assert find_libraries(late, told)["libmpi.so.40"] == folder / "told" / "libmpi.so.40"
    assert find_libraries(early, told)["libmpi.so.40"] == folder / "rpath" / "libmpi.so.40"


def test_a_folder_a_missing_file_and_a_circle_are_no_trouble(folder: Path) -> None:
    assert find_libraries(folder, {}) == {}
    assert find_libraries(folder / "nowhere", {}) == {}
    program = write(folder / "a", elf("./b", str(folder / "a"), runpath="relative:\0"))
    assert list(find_libraries(program, {})) == ["./b", str(folder / "a")]


def test_a_program_with_more_libraries_than_any_has_is_not_followed_to_the_end(folder: Path) -> None:
    program = write(folder / "a", elf(*(f"lib{number}.so" for number in range(3000)), "/" + "x" * 4000))
    assert len(find_libraries(program, {})) == MOST_LIBRARIES
    assert find_libraries(write(folder / "b", elf("/" + "x" * 4000)), {}) == {"/" + "x" * 4000: None}


# MPI is chosen


@pytest.mark.parametrize("name", ["libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_mpifh.so.40", "libmpi.so"])
def test_a_program_that_needs_an_mpi_library_is_an_mpi_program(name: str) -> None:
    found = detect({}, {}, ("./hello",), libraries=("libc.so.6", name))
    assert (found.framework, found.because) == ("mpi", f"./hello needs {name}")


@pytest.mark.parametrize("name", ["libc.so.6", "libmpicxx_demo.txt", "libmpir.so.23", "libmpc.so.3", "libmpi4.so"])
def test_other_libraries_are_none_of_mpi(name: str) -> None:
    assert detect({}, {}, ("./hello",), libraries=(name,)).framework == "none"


@pytest.mark.parametrize("on", ["local", "k8s"])
def test_a_program_of_the_folder_is_looked_at_wherever_it_will_run(folder: Path, on: str) -> None:
    write(folder / "hello", elf("libmpi.so.40", rpath="$ORIGIN/lib"))
    write(folder / "lib" / "libmpi.so.40", elf())
    write(folder / "bin" / "mpirun", "#!/bin/sh\n")
    spec = make_spec(command=("./hello",), workdir=str(folder), on=on, slots=2)
    program = find_program(spec, {"PATH": str(folder / "bin")})
    assert (program.framework, program.because) == ("mpi", "./hello needs libmpi.so.40")
    assert program.mpirun == ("mpirun" if on == "k8s" else str(folder / "bin" / "mpirun"))


def test_a_program_of_an_image_is_not_looked_for_here(folder: Path) -> None:
    program = write(folder / "elsewhere" / "hello", elf("libmpi.so.40"))
    work = folder / "work"
    work.mkdir()
    assert (
        find_program(make_spec(command=(str(program),), workdir=str(work), on="k8s", slots=2), {}).framework == "none"
    )


def test_what_the_user_says_wins(folder: Path) -> None:
    write(folder / "hello", elf("libmpi.so.40"))
    spec = make_spec(command=("./hello",), workdir=str(folder), slots=2, framework="none")
    program = find_program(spec, {"PATH": ""})
    assert (program.framework, program.mpirun) == ("none", None)


@pytest.mark.parametrize("name", ["libmpich.so.12", "libmpi.so.12"])
@pytest.mark.parametrize("on", ["local", "k8s"])
def test_a_program_of_mpich_is_refused_with_the_ways_out(folder: Path, name: str, on: str) -> None:
    write(folder / "hello", elf(name))
    spec = make_spec(command=("./hello",), workdir=str(folder), on=on, slots=2)
    with pytest.raises(UsageError, match=f"./hello needs {name}, which is MPICH's or Intel's") as caught:
        find_program(spec, {})
    assert "mpirun -n N ./hello" in caught.value.hint
    alone = make_spec(command=("./hello",), workdir=str(folder), on=on, slots=1)
    assert find_program(alone, {}).mpirun is None


# Versions are compared


@pytest.mark.parametrize(
    ("file", "data", "build"),
    [
        ("libmpi.so.40", open_mpi("5.0.11rc1"), Build("Open MPI", "5.0.11")),
        ("libmpi.so.40.30.4", open_mpi("4.1.4"), Build("Open MPI", "4.1.4")),
        ("libmpi.so.40.30.4", b"", Build("Open MPI", "4.1")),
        ("libmpi.so.40.40.7", b"", Build("Open MPI", "5.0")),
        ("libmpi.so.40", b"", Build()),
    ],
)
def test_a_library_tells_whose_it_is(file: str, data: bytes, build: Build) -> None:
    assert build_of_library(file, data) == build


@pytest.mark.parametrize(
    ("said", "build"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to …\n", Build("Open MPI", "4.1.4")),
        ("mpirun (Open MPI) 5.0.11\n", Build("Open MPI", "5.0.11")),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", Build("MPICH")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\n", Build("MPICH")),
        ("", Build()),
    ],
)
def test_mpirun_tells_whose_it_is(said: str, build: Build) -> None:
    assert build_of_mpirun(said) == build


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        (Build("Open MPI", "5.0.11"), Build("Open MPI", "5.1.0"), True),
        (Build("Open MPI", "5.0.11"), Build("Open MPI", "4.1.4"), False),
        (Build("Open MPI"), Build("Open MPI", "4.1.4"), True),
        (Build("MPICH"), Build("Open MPI", "4.1.4"), False),
        (Build("MPICH"), Build("MPICH"), True),
        (Build(), Build("Open MPI", "4.1.4"), True),
    ],
)
def test_majors_and_families_have_to_fit(one: Build, other: Build, fits: bool) -> None:
    assert one.fits(other) is other.fits(one) is fits


def mpirun(path: Path, version: str) -> Path:
    return write(path, f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'\n")


@pytest.fixture
def hello(folder: Path) -> Path:
    """Built with Open MPI 5, which is in a folder of its own."""
    write(folder / "five" / "lib" / "libmpi.so.40", open_mpi("5.0.11"))
    return write(folder / "hello", elf("libmpi.so.40", runpath=str(folder / "five" / "lib")))


def test_the_mpirun_beside_the_library_is_taken(folder: Path, hello: Path) -> None:
    four, five = mpirun(folder / "bin" / "mpirun", "4.1.4"), mpirun(folder / "five" / "bin" / "mpirun", "5.0.11")
    found = find_mpirun(str(hello), find_libraries(hello, {}), {"PATH": str(four.parent)})
    assert (found.path, found.note) == (str(five), "")


def test_of_several_the_one_that_fits_is_taken(folder: Path, hello: Path) -> None:
    mpirun(folder / "five" / "bin" / "mpirun", "4.1.4")
    fits = mpirun(folder / "bin" / "mpirun", "5.0.6")
    found = find_mpirun(str(hello), find_libraries(hello, {}), {"PATH": str(fits.parent)})
    assert (found.path, found.note) == (str(fits), "")


def test_an_mpirun_of_another_version_is_told_with_both_versions_and_the_way_out(folder: Path, hello: Path) -> None:
    other = mpirun(folder / "bin" / "mpirun", "4.1.4")
    spec = make_spec(command=("./hello",), workdir=str(folder), slots=2)
    program = find_program(spec, {"PATH": f"{other.parent}:/bin"})
    assert program.mpirun == str(other)
    assert program.notes == (
        f"hello needs Open MPI 5.0.11, but {other} is of Open MPI 4.1.4: it may fail in MPI_Init, or each process may "
        "run as if it were alone. Put the folder of the mpirun of Open MPI 5.0.11 first on the PATH.",
    )


def test_without_any_mpirun_it_is_told_where_to_get_one(folder: Path, hello: Path) -> None:
    with pytest.raises(UsageError, match="needs MPI, but there is no mpirun"):
        find_mpirun(str(hello), find_libraries(hello, {}), {"PATH": str(folder / "bin")})


def test_an_mpirun_that_does_not_answer_is_taken_for_one_that_fits(folder: Path, hello: Path) -> None:
    broken = write(folder / "bin" / "mpirun", "#!/bin/sh\nexit 1\n")
    found = find_mpirun(str(hello), find_libraries(hello, {}), {"PATH": str(broken.parent)})
    assert (found.path, found.note) == (str(broken), "")
