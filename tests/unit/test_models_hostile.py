"""Files that are damaged, or made to harm: a sentence, and nothing else."""

from __future__ import annotations

import io
import json
import pickle
import resource
import struct
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumasi import models
from pumasi.errors import UsageError
from pumasi.models import archive as archives
from pumasi.models import guard
from pumasi.models.pickles import tensors_in
from tests.unit.test_models_averaging import SAVERS, read, save_keras, save_npz
from tests.unit.torch_files import Global, View, save_object, save_torch, whole

TINY = {"layer/kernel": np.ones((3, 4), np.float32), "iterations": np.array(3)}
ANYWHERE = st.integers(0, 10**6)
DAMAGE = st.one_of(
    st.tuples(st.just("byte"), ANYWHERE, st.integers(0, 255).map(lambda value: bytes([value]))),
    st.tuples(
        st.just("bytes"), ANYWHERE, st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 4, b"\x7f" + b"\xff" * 3])
    ),
    st.tuples(st.just("cut"), ANYWHERE, st.just(b"")),
)


def damaged(data: bytes, damages: list[tuple[str, int, bytes]]) -> bytes:
    for kind, place, with_ in damages:
        at = place % max(len(data), 1)
        data = data[:at] if kind == "cut" else data[:at] + with_ + data[at + len(with_) :]
    return data


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("intact")
    paths = {kind: folder / f"{kind.replace(' ', '-')}{suffix}" for kind, (suffix, _) in SAVERS.items()}
    for kind, path in paths.items():
        SAVERS[kind][1](path, TINY)
    return paths


@pytest.mark.parametrize("kind", SAVERS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(damages=st.lists(DAMAGE, min_size=1, max_size=3))
def test_damage_is_a_sentence_or_no_damage(
    kind: str, intact: dict[str, Path], damages: list[tuple[str, int, bytes]]
) -> None:
    path = intact[kind].with_name(f"damaged{SAVERS[kind][0]}")
    path.write_bytes(damaged(intact[kind].read_bytes(), damages))
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "LONGEST", 3.0)
        try:
            models.show(path)
            models.average([path], path.with_name(f"result{SAVERS[kind][0]}"), force=True)
        except UsageError as error:
            said = error.message
        else:
            said = str(path)
    assert str(path) in said or "layer/kernel" in said
    assert said.isprintable()
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_named(kind: str, share: float, intact: dict[str, Path], tmp_path: Path) -> None:
    data = intact[kind].read_bytes()
    path = tmp_path / f"cut{SAVERS[kind][0]}"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UsageError, match=r"cut.* can't be read as"):
        read(path)


def safetensors_of(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}},
        {"w": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}},
        {"w": {"dtype": "X", "shape": [0], "data_offsets": [0, 4]}},
        {"\x1b[31m": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"w": 3},
        [],
        3,
    ],
)
def test_safetensors_that_lie_are_refused(header: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read as safetensors"):
        read(safetensors_of(tmp_path / "x.safetensors", header, bytes(8)))


def test_a_header_that_claims_a_terabyte_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 10**12) + b"{}")
    with pytest.raises(UsageError, match="its header claims 1000000000000 bytes"):
        read(tmp_path / "x.safetensors")


def test_an_unknown_type_is_kept_if_equal(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    one, two = (safetensors_of(tmp_path / f"{number}.safetensors", header, b"abcd") for number in range(2))
    other = safetensors_of(tmp_path / "other.safetensors", header, b"abce")
    assert models.average([one, two], tmp_path / "final.safetensors").rules == {"kept": 1}
    assert models.show(one).tensors[0].dtype == "F8_E4M3"
    with pytest.raises(UsageError, match="of which there is no mean"):
        models.average([one, other], tmp_path / "final.safetensors", force=True)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "__import__('os').system('false')",
        "(" * 3000,
        "{}",
    ],
)
def test_arrays_that_lie_are_refused(header: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode() + bytes(4))
    with pytest.raises(UsageError, match="can't be read as npz"):
        read(tmp_path / "x.npz")


def test_a_dataset_that_claims_a_terabyte_is_refused(tmp_path: Path) -> None:
    for name, options in (("plain", {}), ("packed", {"chunks": (1000,), "compression": "gzip"})):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("w", shape=(10**12 // 8,), dtype="f8", **options)
        with pytest.raises(UsageError, match="claims 1000000000000 bytes"):
            read(tmp_path / f"{name}.h5")


def test_datasets_that_stand_in_the_same_place_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    with h5py.File(path, "w") as file:
        for name in ("one", "two"):
            file[name] = np.ones(1000, np.float32)
        one, two = (struct.pack("<Q", file[name].id.get_offset()) for name in ("one", "two"))
    path.write_bytes(path.read_bytes().replace(two, one))
    with pytest.raises(UsageError, match="two stands where another tensor does"):
        read(path)


def test_links_out_of_the_file_are_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["w"] = np.ones(1)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["w"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "w")
    assert read(tmp_path / "link.h5") == {}
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file.create_dataset("w", shape=(4,), dtype="u1", external=[(str(tmp_path / "secret.h5"), 0, 4)])
    with pytest.raises(UsageError, match="has its numbers in other files"):
        read(tmp_path / "raw.h5")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import pathlib; pathlib.Path('harmed').touch()",)


def torch_file(path: Path, text: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", text)
    return path


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_code_in_a_pickle_is_refused_by_name_and_never_run(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = torch_file(tmp_path / "evil.pt", pickle.dumps({"w": Evil()}, protocol))
    with pytest.raises(UsageError, match=r"builtin.*\.exec'"):
        read(path)
    assert not (tmp_path / "harmed").exists()


def test_a_whole_model_is_refused_with_a_way_out(tmp_path: Path) -> None:
    save_object(tmp_path / "net.pt", {"net": Global("__main__ Net")})
    with pytest.raises(UsageError, match=r"it holds '__main__.Net'.*torch\.save\(model\.state_dict\(\), …\)"):
        read(tmp_path / "net.pt")


def test_the_old_format_is_told_how_to_be_saved_again(tmp_path: Path) -> None:
    (tmp_path / "old.pth").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    with pytest.raises(UsageError, match=r"before 1\.6; load it in PyTorch and save it again"):
        read(tmp_path / "old.pth")


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (10**12,), (1,)),
        (3, (2,), (1,)),
        (-1, (1,), (1,)),
        (0, (2, 2), (-1, 1)),
        (0, (4, 4), (1, 0.5)),
        (0, (3, 3), (1, 1)),
        (0, (1,), ()),
        (10**30, (1,), (1,)),
    ],
)
def test_tensors_outside_their_storage_are_refused(offset: int, shape: Any, strides: Any, tmp_path: Path) -> None:
    save_object(tmp_path / "x.pt", {"w": View(np.ones(4, np.float32), offset, shape, strides)})
    with pytest.raises(UsageError, match="can't be read as PyTorch"):
        read(tmp_path / "x.pt")


def test_a_tensor_that_repeats_itself_takes_no_memory(tmp_path: Path) -> None:
    save_object(tmp_path / "x.pt", {"w": View(np.ones(4, np.float32), 0, (10**12, 4), (0, 1))})
    assert read(tmp_path / "x.pt")["w"].shape == (1, 4)


@pytest.mark.parametrize("letter", [b"\x86", b"2\x86"])
def test_pickles_that_grow_without_end_are_walked_once(letter: bytes) -> None:
    twice = b"\x80\x02]" + (b"2\x86" * 60 if letter == b"2\x86" else b"(K\x01K\x01t") + b"."
    assert list(tensors_in(twice)) == []


def test_a_key_that_takes_for_ever_to_hash_is_not_hashed() -> None:
    assert list(tensors_in(b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.")) == []


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        list(tensors_in(b"\x80\x02]" + b"\x85" * 5000 + b"."))


def test_tied_weights_and_views_are_averaged_once(tmp_path: Path) -> None:
    for number in range(2):
        numbers = np.arange(6, dtype=np.float32) * (number + 1)
        tied = whole(numbers.reshape(2, 3))
        turned = View(tied.storage, 0, (3, 2), (1, 3))
        middle = View(tied.storage, 2, (2,), (1,))
        save_object(tmp_path / f"{number}.pt", {"a": tied, "b": tied, "turned": turned, "middle": middle})
    models.average([tmp_path], tmp_path / "final.pt")
    final = read(tmp_path / "final.pt")
    expected = np.arange(6).reshape(2, 3) * 1.5
    for name in ("a", "b"):
        np.testing.assert_array_equal(final[name], expected)
    np.testing.assert_array_equal(final["turned"], expected.T)
    np.testing.assert_array_equal(final["middle"], [3, 4.5])
    apart = {name: np.ones((2, 3), np.float32) for name in ("a", "b")}
    save_torch(tmp_path / "apart.pt", {**apart, "turned": apart["a"].T, "middle": np.ones(2, np.float32)})
    with pytest.raises(UsageError, match="a shares its memory with another tensor in only one of"):
        models.average([tmp_path / "0.pt", tmp_path / "apart.pt"], tmp_path / "no.pt")


@pytest.mark.parametrize("large", [1 << 30, 0])
def test_the_pickle_of_a_checkpoint_stays_and_storages_are_aligned(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_ZIP64_FROM", large)
    for number in range(2):
        weights = {"w": whole(np.full((2, 2), float(number)))}
        save_object(tmp_path / f"{number}.pt", {"model": weights, "epoch": 3, "lr": [0.1], "name": "net"})
    models.average([tmp_path], tmp_path / "final.pt")
    assert read(tmp_path / "final.pt")["model/w"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    data = (tmp_path / "final.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "final.pt") as final, zipfile.ZipFile(tmp_path / "0.pt") as first:
        assert final.testzip() is None
        assert final.read("archive/data.pkl") == first.read("archive/data.pkl")
        for entry in final.infolist():
            name, extra = struct.unpack_from("<HH", data, entry.header_offset + 26)
            assert (entry.header_offset + 30 + name + extra) % 64 == 0


def test_a_library_that_crashes_hangs_or_raises_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    assert guard.apart(lambda: b"x" * 3_000_000) == b"x" * 3_000_000
    with pytest.raises(ValueError, match="its words"):
        guard.apart(lambda: (_ for _ in ()).throw(KeyError("its words")))
    with pytest.raises(ValueError, match="crashes over it"):
        guard.apart(lambda: bytes(ctypes.string_at(0)))
    monkeypatch.setattr(guard, "LONGEST", 0.2)
    with pytest.raises(ValueError, match="comes to no end"):
        guard.apart(lambda: time.sleep(60) or b"")  # type: ignore[func-returns-value]


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", bytes(1000))
    data = bytearray((tmp_path / "bomb.npz").read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 2**32 - 2)
    (tmp_path / "bomb.npz").write_bytes(data)
    with pytest.raises(UsageError, match="claims 4294967294 bytes"):
        read(tmp_path / "bomb.npz")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    save_keras(tmp_path / "x.keras", TINY)
    save_npz(tmp_path / "x.npz", TINY)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UsageError, match="needs the package h5py") as caught:
        models.show(tmp_path / "x.keras")
    assert "pip install 'pumasi[models]'" in caught.value.hint
    assert len(models.show(tmp_path / "x.npz").tensors) == 2


def test_an_entry_that_is_no_torch_file_is_refused(tmp_path: Path) -> None:
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("net/data.pkl", b"\x80\x02}.")
        archive.writestr("net/constants.pkl", b"\x80\x02).")
    (tmp_path / "script.pt").write_bytes(text.getvalue())
    with pytest.raises(UsageError, match="it is a TorchScript program"):
        read(tmp_path / "script.pt")
