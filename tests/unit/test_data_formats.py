"""Every format: what is read, cut, rearranged and written, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pumasi.data import PartSet, copy, split
from pumasi.data.partition import MOST_CLASSES
from pumasi.errors import PumasiError, SystemTrouble, UsageError

ROWS = 103
Table = list[tuple[int, str]]
"""Rows with a number of their own, and a class."""
TABLE: Table = [(row, "abc"[row * row % 3]) for row in range(ROWS)]


def write_npz(path: Path, table: Table, save: Callable[..., None] = np.savez) -> None:
    x = np.array([[row, -row] for row, _ in table], np.float32).reshape(-1, 2)
    save(path, x=x, y=np.array([kind for _, kind in table]))


def write_compressed(path: Path, table: Table) -> None:
    write_npz(path, table, np.savez_compressed)


def write_fortran(path: Path, table: Table) -> None:
    x = np.array([[row, -row] for row, _ in table], np.float32)
    np.savez_compressed(path, x=np.asfortranarray(x), y=np.array([kind for _, kind in table]))


def read_npz(path: Path) -> Table:
    with np.load(path) as arrays:
        assert (arrays["x"][:, 1] == -arrays["x"][:, 0]).all()
        return [(int(row), str(kind)) for row, kind in zip(arrays["x"][:, 0], arrays["y"], strict=True)]


def write_csv(path: Path, table: Table) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "a text", "y"])
        for row, kind in table:
            writer.writerow([row, ['x, "y"\nz\r\n', "", 'a 5" pipe'][row % 3], kind])


def read_csv(path: Path) -> Table:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert row["a text"] == ['x, "y"\nz\r\n', "", 'a 5" pipe'][int(row["row"]) % 3]
    return [(int(row["row"]), row["y"]) for row in rows]


def write_jsonl(path: Path, table: Table) -> None:
    lines = [json.dumps({"row": row, "text": "é\n", "y": [kind]}, ensure_ascii=False) for row, kind in table]
    path.write_text("\n\n".join(lines))


def read_jsonl(path: Path) -> Table:
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    return [(row["row"], row["y"][0]) for row in rows]


def write_parquet(path: Path, table: Table) -> None:
    kinds = pa.array([kind for _, kind in table]).cast(pa.dictionary(pa.int8(), pa.string()))
    lists = [None if row % 5 else [row] * (row % 7) for row, _ in table]
    whole = pa.table({"row": [row for row, _ in table], "list": lists, "y": kinds})
    pq.write_table(whole.replace_schema_metadata({"who": "me"}), path, row_group_size=40, compression="zstd")


def read_parquet(path: Path) -> Table:
    file = pq.ParquetFile(path)
    assert file.schema_arrow.metadata[b"who"] == b"me"
    assert pa.types.is_dictionary(file.schema_arrow.field("y").type)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    rows = file.read().to_pylist()
    assert all(row["list"] == (None if row["row"] % 5 else [row["row"]] * (row["row"] % 7)) for row in rows)
    return [(row["row"], row["y"]) for row in rows]


def write_folder(path: Path, table: Table) -> None:
    """By path, as a folder is read."""
    for row, kind in sorted(table, key=lambda each: (each[1], each[0])):
        (path / kind / "deep").mkdir(parents=True, exist_ok=True)
        (path / kind / "deep" / f"{row:04}").write_text(str(row))
    (path / ".hidden").write_text("no row")


def read_folder(path: Path) -> Table:
    files = sorted(each for each in path.rglob("*") if each.is_file())
    assert all(int(each.name) == int(each.read_text()) for each in files)
    return [(int(each.name), each.parts[-3]) for each in files]


FORMATS: dict[str, tuple[str, Callable[[Path, Table], None], Callable[[Path], Table]]] = {
    "npz": ("some data.npz", write_npz, read_npz),
    "compressed npz": ("data.npz", write_compressed, read_npz),
    "npz in Fortran's order": ("data.npz", write_fortran, read_npz),
    "csv": ("data.csv", write_csv, read_csv),
    "jsonl": ("data.jsonl", write_jsonl, read_jsonl),
    "parquet": ("data.parquet", write_parquet, read_parquet),
    "folder": ("data", write_folder, read_folder),
}


@pytest.fixture(params=[None, 300], ids=["at once", "in small pieces"])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a large file would go through."""
    if request.param is not None:
        for module in ("npy", "lines", "parquet"):
            monkeypatch.setattr(f"pumasi.data.formats.{module}.CHUNK", request.param)
        monkeypatch.setattr("pumasi.data.formats.folder._AT_ONCE", 7)
        monkeypatch.setattr("pumasi.data.rearranging.BUCKET", request.param)
        monkeypatch.setattr("pumasi.data.rearranging._BLOCK", 13)


@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("n", [1, 5, ROWS])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("stratify", [None, ""])
@pytest.mark.parametrize("name", FORMATS)
def test_every_row_is_in_exactly_one_part(
    name: str, n: int, seed: int | None, stratify: str | None, tmp_path: Path
) -> None:
    file, write, read = FORMATS[name]
    write(tmp_path / file, TABLE)
    made = split(tmp_path / file, n, seed=seed, stratify=stratify)
    assert made.folder == tmp_path / f"{Path(file).stem}-{n}"
    assert made.made
    parts = [read(made.folder / part.name) for part in made.parts]
    assert [len(part) for part in parts] == [part.rows for part in made.parts]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    rows = [row for part in parts for row in part]
    assert sorted(rows) == TABLE
    in_file = sorted(TABLE, key=lambda each: (each[1], each[0])) if name == "folder" else TABLE
    if seed is None and stratify is None:
        assert rows == in_file
    elif n == 1 and seed is not None and name != "folder":
        assert rows != in_file
    if stratify is not None:
        counts = [Counter(kind for _, kind in part) for part in parts]
        assert all(max(c[kind] for c in counts) - min(c[kind] for c in counts) <= 1 for kind in "abc")


def contents(made: PartSet) -> list[bytes]:
    return [(made.folder / part.name).read_bytes() for part in made.parts]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "folder"])
def test_a_seed_gives_the_same_rows_in_every_format(name: str, tmp_path: Path) -> None:
    """And in small pieces the same as at once: see above, by the same order."""
    file, write, read = FORMATS[name]
    write(tmp_path / file, TABLE)
    made = split(tmp_path / file, 4, seed=11)
    write_jsonl(tmp_path / "reference.jsonl", TABLE)
    reference = split(tmp_path / "reference.jsonl", 4, seed=11)
    for part, other in zip(made.parts, reference.parts, strict=True):
        assert read(made.folder / part.name) == read_jsonl(reference.folder / other.name)


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_input_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    file, write, _ = FORMATS[name]
    write(tmp_path / file, TABLE)
    one = split(tmp_path / file, 3, tmp_path / "one", seed=1)
    other = split(tmp_path / file, 3, tmp_path / "other", seed=1)
    assert one.parts == other.parts


@pytest.mark.parametrize("name", FORMATS)
def test_copies_are_whole_and_independent(name: str, tmp_path: Path) -> None:
    file, write, read = FORMATS[name]
    write(tmp_path / file, TABLE)
    made = copy(tmp_path / file, 3)
    assert made.folder == tmp_path / f"{Path(file).stem}-3-copies"
    assert [part.rows for part in made.parts] == [ROWS] * 3
    for part in made.parts:
        assert sorted(read(made.folder / part.name)) == TABLE
    if name != "folder":
        assert set(contents(made)) == {(tmp_path / file).read_bytes()}
        assert len({(made.folder / part.name).stat().st_ino for part in made.parts}) == 3


def test_a_npy_file_of_any_kind_of_row(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "numbers": np.arange(11.0),
        "pictures": np.asfortranarray(np.arange(11 * 2 * 3 * 4).reshape(11, 2, 3, 4)),
        "texts": np.array(["é" * row for row in range(11)]),
        "fields": np.array([(row, row / 2) for row in range(11)], [("가", "i4"), ("b", "f8")]),
    }
    for name, rows in kinds.items():
        np.save(tmp_path / f"{name}.npy", rows)
        made = split(tmp_path / f"{name}.npy", 4)
        found = np.concatenate([np.load(made.folder / part.name) for part in made.parts])
        assert found.dtype == rows.dtype
        assert (found == rows).all()


def test_parts_of_an_npz_are_compressed_if_it_is(tmp_path: Path) -> None:
    for save, kind in ((np.savez, zipfile.ZIP_STORED), (np.savez_compressed, zipfile.ZIP_DEFLATED)):
        write_npz(tmp_path / "data.npz", TABLE, save)
        made = split(tmp_path / "data.npz", 2, force=True)
        with zipfile.ZipFile(made.folder / "0.npz") as archive:
            assert {info.compress_type for info in archive.infolist()} == {kind}


def test_one_hot_rows_are_classes_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.arange(12), label=np.eye(3)[np.arange(12) // 4])
    made = split(tmp_path / "data.npz", 4, stratify="label")
    for part in made.parts:
        assert np.load(made.folder / part.name)["label"].sum(axis=0).tolist() == [1, 1, 1]


def test_other_delimiters_and_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes('\ufeffname;y\r\n"a;b\r\nc";1\r\n\r\nd;2'.encode())
    made = split(tmp_path / "data.csv", 2, stratify="y")
    assert contents(made) == [b'name;y\r\n"a;b\r\nc";1\r\n', b"name;y\r\nd;2\n"]


def test_null_and_nan_are_classes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": pa.array([None, float("nan")] * 4)}), tmp_path / "data.parquet")
    made = split(tmp_path / "data.parquet", 4, stratify="y")
    assert all(pq.read_table(made.folder / part.name)["y"].null_count == 1 for part in made.parts)


def raw_npz(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def npy(rows: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def big_npz(save: Callable[..., None] = np.savez) -> bytes:
    file = io.BytesIO()
    save(file, x=np.arange(5000))
    return file.getvalue()


def parquet_bytes() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": list(range(5000))}), file, compression="none", use_dictionary=False)
    return file.getvalue()


BAD: dict[str, tuple[str, bytes, str]] = {
    "an empty npz": ("d.npz", b"", "no .npz file, or a damaged one"),
    "an npz cut off": ("d.npz", big_npz()[:-30], "no .npz file, or a damaged one"),
    "an npz with a flipped bit": ("d.npz", flipped(big_npz(), 20_000), "damaged in its array x"),
    "a compressed one": ("d.npz", flipped(big_npz(np.savez_compressed), 3000), "damaged in its array x"),
    "an empty npy": ("d.npy", b"", "no .npy file, or a damaged one"),
    "an npy with half a header": ("d.npy", npy(np.arange(9))[:40], "has a damaged header"),
    "an npy cut off": ("d.npy", npy(np.arange(9))[:-3], "is cut off"),
    "an npy cut off, Fortran's": ("d.npy", npy(np.asfortranarray(np.ones((9, 2))))[:-3], "is cut off"),
    "two arrays in one npy": ("d.npy", npy(np.arange(9)) * 2, "more bytes than its header says"),
    "objects": ("d.npy", npy(np.array([{}, []], dtype=object)), "holds Python objects"),
    "a single value": ("d.npy", npy(np.array(3)), "has no rows: its shape is ()"),
    "an empty csv": ("d.csv", b"", "is empty"),
    "a csv without rows": ("d.csv", b"a,b\n", "has 0 rows"),
    "a csv that ends in quotes": ("d.csv", b'a,b\n1,2\n1,"x\n1,2\n', "ends inside quotes"),
    "a csv cut off": ("d.csv", b"a,b\n1,2\n3", "has 2 columns, but in row 2 the number of fields is 1"),
    "a csv in UTF-16": ("d.csv", "a,b\n1,2\n".encode("utf-16"), "UTF-16"),
    "a jsonl cut off": ("d.jsonl", b'{"a": 1}\n{"a": ', "no whole JSON value in row 2"),
    "an empty jsonl": ("d.jsonl", b"", "has 0 rows"),
    "a parquet cut off": ("d.parquet", parquet_bytes()[:-9], "no .parquet file, or a damaged one"),
    "a parquet with a hole": ("d.parquet", parquet_bytes()[:4] + b"\0" * 60 + parquet_bytes()[64:], "is damaged"),
}


@pytest.mark.parametrize("mode", [split, copy])
@pytest.mark.parametrize("name", BAD)
def test_a_damaged_file_is_refused_by_name_and_leaves_nothing(
    name: str, mode: Callable[..., PartSet], tmp_path: Path
) -> None:
    file, data, told = BAD[name]
    path = tmp_path / file
    path.write_bytes(data)
    if mode is copy and "0 rows" in told:
        assert [part.rows for part in copy(path, 2).parts] == [0, 0]
        return
    with pytest.raises(UsageError) as caught:
        mode(path, 2)
    assert told in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == [path]


def test_arrays_of_an_npz_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((7, 2)), y=np.zeros(6))
    with pytest.raises(UsageError, match="different numbers of rows: x 7, y 6"):
        split(path, 2)
    np.savez(path, x=np.zeros(7), names=np.array(["a", None], dtype=object))
    with pytest.raises(UsageError, match=r"array names of .* holds Python objects"):
        split(path, 2)
    np.savez(path, x=np.zeros(7), version=np.array(3))
    with pytest.raises(UsageError, match=r"array version of .* has no rows"):
        split(path, 2)
    raw_npz(path)
    with pytest.raises(UsageError, match="has no arrays"):
        split(path, 2)
    raw_npz(path, x=npy(np.zeros(3)), notes=b"hello")
    with pytest.raises(UsageError, match="holds notes, which is no array"):
        split(path, 2)


@pytest.mark.parametrize(
    ("file", "data", "hint"),
    [
        ("d.npz", big_npz(), "It has x:"),
        ("d.csv", b"a,b\n1,2\n3,4\n", "It has a, b:"),
        ("d.jsonl", b'{"a": 1}\n{"a": 2}\n', "It has a:"),
        ("d.parquet", parquet_bytes(), "It has x:"),
    ],
)
def test_a_key_that_is_not_there_is_told_with_those_that_are(file: str, data: bytes, hint: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(data)
    with pytest.raises(UsageError, match="zebra") as caught:
        split(tmp_path / file, 2, stratify="zebra")
    assert hint in caught.value.hint


def test_what_has_no_classes_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.arange(5))
    with pytest.raises(UsageError, match="one array only"):
        split(tmp_path / "d.npy", 2, stratify="")
    (tmp_path / "d.jsonl").write_text("1\n2\n")
    with pytest.raises(UsageError, match="is no object"):
        split(tmp_path / "d.jsonl", 2, stratify="")
    write_folder(tmp_path / "d", TABLE)
    with pytest.raises(UsageError, match="not label"):
        split(tmp_path / "d", 2, stratify="label")
    (tmp_path / "d" / "stray").write_text("")
    with pytest.raises(UsageError, match="stray lies in no folder"):
        split(tmp_path / "d", 2, stratify="")


def test_a_key_that_is_different_everywhere_is_no_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", y=np.arange(MOST_CLASSES + 1))
    with pytest.raises(UsageError, match="these are no classes"):
        split(tmp_path / "d.npz", 2, stratify="")


def test_lines_that_never_end_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumasi.data.formats.lines.LONGEST_ROW", 1000)
    monkeypatch.setattr("pumasi.data.formats.csv_text.LONGEST_ROW", 1000)
    (tmp_path / "d.jsonl").write_text("[" + "1, " * 1000)
    with pytest.raises(UsageError, match="has a line of more than"):
        split(tmp_path / "d.jsonl", 2)
    (tmp_path / "d.csv").write_text('a,b\n1,"x' + "\n1,2" * 1000)
    with pytest.raises(UsageError, match="Is a quote missing"):
        split(tmp_path / "d.csv", 2)


def test_a_folder_with_links_is_read_through_those_to_files_only(tmp_path: Path) -> None:
    write_folder(tmp_path / "d", TABLE)
    (tmp_path / "elsewhere").write_text("1000")
    (tmp_path / "d" / "a" / "deep" / "1000").symlink_to(tmp_path / "elsewhere")
    made = copy(tmp_path / "d", 1)
    assert not (made.folder / "0" / "a" / "deep" / "1000").is_symlink()
    (tmp_path / "d" / "b" / "more").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="more is neither a file nor a folder"):
        copy(tmp_path / "d", 2)


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
def test_a_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "d.parquet", TABLE)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemTrouble, match=f"package {package}") as caught:
        split(tmp_path / "d.parquet", 2)
    assert caught.value.hint == f"Install it: pip install {package}"


@pytest.mark.parametrize("file", ["missing.npz", "data.txt", "data"])
def test_what_is_no_data_is_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("hello")
    (tmp_path / "data").write_text("hello")
    with pytest.raises(PumasiError, match=file):
        split(tmp_path / file, 2)


@pytest.mark.parametrize("name", FORMATS)
def test_more_parts_than_rows_is_refused(name: str, tmp_path: Path) -> None:
    file, write, _ = FORMATS[name]
    write(tmp_path / file, TABLE)
    with pytest.raises(UsageError, match=f"has {ROWS} rows: too few for 104 parts") as caught:
        split(tmp_path / file, ROWS + 1)
    assert f"-n {ROWS}" in caught.value.hint
    assert [each.name for each in tmp_path.iterdir()] == [file]
