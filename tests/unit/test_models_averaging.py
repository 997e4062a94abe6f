"""Averages of models in every format: what comes out, what is refused, and in which words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pumasi import models
from pumasi.errors import UsageError
from pumasi.models import guard
from pumasi.models.formats import hdf5, open_model
from pumasi.serve.sources import beside
from tests.unit.torch_files import save_torch

Arrays = dict[str, "np.ndarray[Any, Any]"]


def save_h5(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "3.0"
        for name, values in arrays.items():
            file[name] = values


def save_packed_h5(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            packing = {"chunks": True, "compression": "gzip"} if values.ndim else {}
            file.create_dataset(name, data=values, **packing)


def save_keras(path: Path, arrays: Arrays, packing: int = zipfile.ZIP_STORED) -> None:
    inner = path.with_suffix(".inner")
    save_h5(inner, arrays)
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.1"}')
        archive.writestr("config.json", "{}")
        archive.write(inner, "model.weights.h5")
        archive.writestr("assets/vocabulary.txt", "a\nb\n")
    inner.unlink()


def save_npz(path: Path, arrays: Arrays) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def save_packed_npz(path: Path, arrays: Arrays) -> None:
    arrays = {name: np.asarray(values, order="F") for name, values in arrays.items()}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def save_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, path, {"format": "np", "note": "kept"})


def save_packed_keras(path: Path, arrays: Arrays) -> None:
    save_keras(path, arrays, zipfile.ZIP_DEFLATED)


def save_big_endian(path: Path, arrays: Arrays) -> None:
    save_h5(path, {name: values.astype(values.dtype.newbyteorder(">")) for name, values in arrays.items()})


SAVERS: dict[str, tuple[str, Callable[[Path, Arrays], None]]] = {
    "h5": (".h5", save_h5),
    "packed h5": (".h5", save_packed_h5),
    "big-endian h5": (".h5", save_big_endian),
    "weights.h5": (".weights.h5", save_h5),
    "keras": (".keras", save_keras),
    "packed keras": (".keras", save_packed_keras),
    "npz": (".npz", save_npz),
    "packed npz": (".npz", save_packed_npz),
    "safetensors": (".safetensors", save_safetensors),
    "pt": (".pt", save_torch),
}


def read(path: Path) -> Arrays:
    with open_model(path) as model:
        return {
            name: np.concatenate([np.empty(0), *model.blocks(name)]).reshape(tensor.shape)
            for name, tensor in model.tensors.items()
        }


def some_models(count: int) -> list[Arrays]:
    dice = np.random.default_rng(7)
    return [
        {
            "kernel": dice.normal(size=(600, 500)).astype(np.float32),
            "half": dice.normal(size=(5, 3)).astype(np.float16),
            "wide": dice.normal(size=(2, 3, 4)),
            "scalar": np.array(number, np.float32),
            "empty": np.zeros((0, 4), np.float32),
            "iterations": np.array(10 * number),
            "table": np.arange(6).reshape(2, 3),
        }
        for number in range(count)
    ]


def save_all(folder: Path, kind: str, several: list[Arrays]) -> list[Path]:
    suffix, save = SAVERS[kind]
    paths = [folder / f"model-{number}{suffix}" for number in range(len(several))]
    for path, arrays in zip(paths, several, strict=True):
        save(path, {name: np.asarray(values) for name, values in arrays.items()})
    return paths


@pytest.mark.parametrize("kind", SAVERS)
def test_every_format_is_averaged_as_numpy_would(kind: str, tmp_path: Path) -> None:
    several = some_models(3)
    paths = save_all(tmp_path, kind, several)
    output = tmp_path / f"final{SAVERS[kind][0]}"
    done = models.average(paths, output, weights=[3, 1, 0.5])
    averaged = read(output)
    for name in ("kernel", "half", "wide", "scalar"):
        exact = np.average([each[name].astype(np.float64) for each in several], axis=0, weights=[3, 1, 0.5])
        np.testing.assert_allclose(averaged[name], exact, rtol=1e-3 if name == "half" else 1e-6, atol=1e-12)
        assert averaged[name].astype(several[0][name].dtype).shape == several[0][name].shape
    assert averaged["iterations"] == 20
    np.testing.assert_array_equal(averaged["table"], several[0]["table"])
    assert averaged["empty"].shape == (0, 4)
    assert done.weights == [6, 2, 1]
    assert (done.rules["mean"], done.rules["largest"]) == (5, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([output.name, *(path.name for path in paths)])


@pytest.mark.parametrize("kind", SAVERS)
def test_the_average_of_one_model_is_the_model(kind: str, tmp_path: Path) -> None:
    (path,) = save_all(tmp_path, kind, some_models(1))
    output = tmp_path / f"final{SAVERS[kind][0]}"
    models.average([path], output)
    assert models.diff(path, output).different == []


@pytest.mark.parametrize("kind", ["h5", "safetensors"])
def test_the_average_of_equal_models_is_the_same_file_byte_for_byte(kind: str, tmp_path: Path) -> None:
    paths = save_all(tmp_path, kind, some_models(1) * 3)
    output = tmp_path / f"final{SAVERS[kind][0]}"
    models.average(paths, output)
    assert output.read_bytes() == paths[0].read_bytes()


@pytest.mark.parametrize("kind", ["h5", "keras"])
def test_the_library_looks_only_at_models_that_are_laid_out_differently(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = [{name: each[name] for name in ("kernel", "wide")} for each in some_models(3)]
    several[2] = dict(reversed(several[2].items()))
    paths = save_all(tmp_path, kind, several)
    looks = 0

    def look(work: Callable[[], bytes], size: int = 0) -> bytes:
        nonlocal looks
        looks += 1
        return guard.apart(work, size)

    monkeypatch.setattr(hdf5, "apart", look)
    final = tmp_path / f"final{SAVERS[kind][0]}"
    models.average(paths, final)
    assert looks == 2
    expected = np.mean([each["kernel"] for each in several], axis=0, dtype=np.float64).astype(np.float32)
    np.testing.assert_array_equal(read(final)["kernel"], expected)


def test_everything_else_in_the_first_file_stays(tmp_path: Path) -> None:
    several = save_all(tmp_path, "packed keras", some_models(2))
    models.average(several, tmp_path / "final.keras")
    with zipfile.ZipFile(several[0]) as first, zipfile.ZipFile(tmp_path / "final.keras") as final:
        assert final.testzip() is None
        assert final.namelist() == first.namelist()
        assert {each.compress_type for each in final.infolist()} == {zipfile.ZIP_DEFLATED}
        for name in ("metadata.json", "config.json", "assets/vocabulary.txt"):
            assert final.read(name) == first.read(name)
    plain = save_all(tmp_path, "packed h5", some_models(2))
    models.average(plain, tmp_path / "final.h5")
    with h5py.File(tmp_path / "final.h5") as contents:
        assert contents["kernel"].compression == "gzip"


def test_the_variance_of_a_batch_normalization_is_that_of_all_data(tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    parts = [dice.normal(size=300, loc=3), dice.normal(size=100, loc=-5, scale=4)]
    pooled = np.concatenate(parts)
    names = {
        ".pt": ("net/1.running_mean", "net/1.running_var"),
        ".h5": ("bn/moving_mean:0", "bn/moving_variance:0"),
        ".weights.h5": ("layers/batch_normalization_1/vars/2", "layers/batch_normalization_1/vars/3"),
    }
    for suffix, (mean, variance) in names.items():
        folder = tmp_path / suffix
        folder.mkdir()
        for number, part in enumerate(parts):
            arrays = {mean: np.array([part.mean()]), variance: np.array([part.var()])}
            if suffix == ".weights.h5":
                arrays |= {f"layers/batch_normalization_1/vars/{each}": np.ones(1) for each in (0, 1)}
            (save_torch if suffix == ".pt" else save_h5)(folder / f"{number}{suffix}", arrays)
        done = models.average([folder], tmp_path / f"final{suffix}", weights=[300, 100])
        averaged = read(tmp_path / f"final{suffix}")
        assert averaged[mean][0] == pytest.approx(pooled.mean(), rel=1e-12)
        assert averaged[variance][0] == pytest.approx(pooled.var(), rel=1e-12)
        assert done.rules["pooled variance"] == 1


def test_a_variance_without_a_mean_is_averaged_as_any_other(tmp_path: Path) -> None:
    paths = save_all(tmp_path, "npz", [{"running_var": np.ones(2)}, {"running_var": 3 * np.ones(2)}])
    models.average(paths, tmp_path / "final.npz")
    assert read(tmp_path / "final.npz")["running_var"].tolist() == [2, 2]


def test_a_random_state_is_kept_with_a_note(tmp_path: Path) -> None:
    states = [{"seed_generator/vars/0": np.array(each, np.uint32)} for each in ([1, 2], [3, 4])]
    paths = save_all(tmp_path, "h5", states)
    done = models.average(paths, tmp_path / "final.h5")
    assert read(tmp_path / "final.h5")["seed_generator/vars/0"].tolist() == [1, 2]
    assert "seed_generator/vars/0 differs" in done.notes[0]


def test_a_float_that_counts_steps_is_no_mean(tmp_path: Path) -> None:
    paths = save_all(tmp_path, "pt", [{"state/0/step": np.array(each, np.float32)} for each in (5, 8)])
    models.average(paths, tmp_path / "final.pt")
    assert read(tmp_path / "final.pt")["state/0/step"] == 8


A = {"w": np.ones((2, 3), np.float32)}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, "1.npz has no tensor w, which"),
        ({**A, "v": np.ones(1)}, "0.npz has no tensor v, which"),
        ({"w": np.ones((3, 2), np.float32)}, "The shape of w is (2, 3) in"),
        ({"w": np.ones((2, 3))}, "The type of w is float32 in"),
        ({"w": np.full((2, 3), np.nan, np.float32)}, "w in .*1.npz has values that are not finite"),
        ({"w": np.full((2, 3), np.inf, np.float32)}, "w in .*1.npz has values that are not finite"),
    ],
)
def test_what_does_not_fit_is_named(other: Arrays, message: str, tmp_path: Path) -> None:
    paths = save_all(tmp_path, "npz", [A, other])
    pattern = message if "*" in message else message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(UsageError, match=pattern):
        models.average(paths, tmp_path / "final.npz")
    assert not (tmp_path / "final.npz").exists()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("values", [[[True, False], [True, True]], [[1, 2], [1, 3]]])
def test_what_has_no_mean_and_differs_is_refused(values: list[list[int]], tmp_path: Path) -> None:
    paths = save_all(tmp_path, "npz", [{"mask": np.array(each)} for each in values])
    with pytest.raises(UsageError, match=r"mask differs between .*0\.npz and .*1\.npz"):
        models.average(paths, tmp_path / "final.npz")


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    paths = save_all(tmp_path, "keras", [A, A])
    with zipfile.ZipFile(paths[0]) as good, zipfile.ZipFile(tmp_path / "other.keras", "w") as bad:
        for entry in good.infolist():
            bad.writestr(entry, b"a\nc\n" if entry.filename.startswith("assets") else good.read(entry))
    with pytest.raises(UsageError, match=r"assets/vocabulary\.txt differs between"):
        models.average([paths[0], tmp_path / "other.keras"], tmp_path / "final.keras")
    with h5py.File(tmp_path / "a.h5", "w") as one, h5py.File(tmp_path / "b.h5", "w") as two:
        one["words"], two["words"] = ["a", "b"], ["a", "c"]
    with pytest.raises(UsageError, match="words differs between"):
        models.average([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "final.h5")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (["1"], "There are 1 weights for 2 files"),
        (["1", "-1"], "'-1' is no weight"),
        (["1", "nan"], "'nan' is no weight"),
        (["1", "1e9"], "'1e9' is no weight"),
        (["0", "0"], "All weights are 0"),
        (["0.123456789012345", "987654321012345"], "more digits than can be counted with"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights: list[str], message: str, tmp_path: Path) -> None:
    paths = save_all(tmp_path, "npz", [A, A])
    with pytest.raises(UsageError, match=message):
        models.average(paths, tmp_path / "final.npz", weights)


def test_a_weight_of_0_leaves_a_file_out(tmp_path: Path) -> None:
    paths = save_all(tmp_path, "npz", [{"w": np.array([np.nan])}, {"w": np.array([4.0])}])
    done = models.average(paths, tmp_path / "final.npz", [0, 2])
    assert read(tmp_path / "final.npz")["w"].tolist() == [4]
    assert done.inputs == paths[1:]


def test_files_are_found_by_folder_and_by_pattern(tmp_path: Path) -> None:
    save_all(tmp_path, "npz", [A, A, A])
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / ".hidden.npz").write_text("no model")
    for number, word in enumerate((str(tmp_path), f"{tmp_path}/model-*.npz")):
        assert len(models.average([word], tmp_path.parent / f"final-{number}.npz", force=True).inputs) == 3


def test_what_can_not_be_found_or_written_is_said(tmp_path: Path) -> None:
    one, two = save_all(tmp_path, "npz", [A, A])
    (other,) = save_all(tmp_path, "safetensors", [A])
    (tmp_path / "empty").mkdir()
    (tmp_path / "link.npz").symlink_to(one)
    (tmp_path / "there.npz").write_text("precious")
    final = tmp_path / "final.npz"

    def refused(words: list[Path | str], output: Path, message: str, *, force: bool = False) -> None:
        with pytest.raises(UsageError, match=message):
            models.average(words, output, force=force)

    refused([], final, "nothing to average")
    refused([tmp_path / "empty"], final, "The folder .*empty has no models")
    refused([f"{tmp_path}/*.h5"], final, "No file matches")
    refused([tmp_path / "no.npz"], final, "There is no file")
    refused([one, other], final, "are of different formats")
    refused([tmp_path], final, "are of different formats")
    refused([one, one], final, "is given twice")
    refused([one, tmp_path / "link.npz"], final, "is given twice")
    refused([one, two], two, "is both a model to average and the result", force=True)
    refused([one, two], tmp_path / "link.npz", "is both a model", force=True)
    refused([one, two], tmp_path / "there.npz", "exists already")
    refused([one, two], tmp_path / "no" / "final.npz", "There is no folder")
    refused([one, two], tmp_path / "final.pt", "would be of another format")
    refused([tmp_path / "empty" / "x.txt"], final, "There is no file")
    assert (tmp_path / "there.npz").read_text() == "precious"
    models.average([one, two], tmp_path / "there.npz", force=True)
    assert models.diff(one, tmp_path / "there.npz").different == []


def test_a_full_disk_leaves_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = save_all(tmp_path, "h5", [A, A])
    (tmp_path / "final.h5").write_text("old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        models.average(paths, tmp_path / "final.h5", force=True)
    assert (tmp_path / "final.h5").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 3


# ---- what lies beside a model


def described(path: Path, text: str | None) -> Path:
    save_h5(path, A)
    if text is not None:
        beside(path).write_text(text)
    return path


def test_an_average_has_the_preprocessing_of_its_models(tmp_path: Path) -> None:
    words = [described(tmp_path / f"{number}.h5", "words") for number in range(3)]
    for _ in range(2):
        assert models.average(words, tmp_path / "final.h5", force=True).notes == []
        assert beside(tmp_path / "final.h5").read_text() == "words"
    assert not list(tmp_path.glob(".*"))


def test_models_with_other_words_are_not_averaged(tmp_path: Path) -> None:
    words = [described(tmp_path / f"{number}.h5", text) for number, text in enumerate(("words", None, "others"))]
    message = r"0\.h5\.preprocessing\.json and .*2\.h5\.preprocessing\.json differ"
    with pytest.raises(UsageError, match=message):
        models.average(words, tmp_path / "final.h5")
    assert not (tmp_path / "final.h5").exists()
    models.average(words, tmp_path / "final.h5", [1, 0, 0])
    assert beside(tmp_path / "final.h5").read_text() == "words"


def test_where_some_models_say_nothing_of_their_words_the_average_does_not_either(tmp_path: Path) -> None:
    words = [described(tmp_path / f"{number}.h5", text) for number, text in enumerate(("words", None))]
    described(tmp_path / "final.h5", "of an earlier model")
    (note,) = models.average(words, tmp_path / "final.h5", force=True).notes
    assert note.startswith(f"There is no {beside(words[1])}, but {beside(words[0])}")
    assert not beside(tmp_path / "final.h5").exists()


@pytest.mark.parametrize("text", ["words", None])
def test_no_model_is_ever_seen_with_the_words_of_another(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every change in the folder: a model that is there has what belongs to it."""
    final = described(tmp_path / "final.h5", "of an earlier model")
    earlier = final.read_bytes()
    new = described(tmp_path / "new.h5", text)
    with h5py.File(new, "r+") as file:
        file.attrs["note"] = "new"
    seen = []

    def look() -> None:
        if final.exists():
            is_earlier = final.read_bytes() == earlier
            seen.append(is_earlier)
            said = beside(final).read_text() if beside(final).exists() else None
            assert said == ("of an earlier model" if is_earlier else text)

    def watched(action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            done = action(*arguments, **options)
            look()
            return done

        return act

    for name in ("unlink", "replace", "write_bytes"):
        monkeypatch.setattr(Path, name, watched(getattr(Path, name)))
    models.average([new], final, force=True)
    assert seen[-1] is False


def test_a_full_disk_leaves_the_old_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = described(tmp_path / "final.h5", "of an earlier model")
    new = described(tmp_path / "new.h5", "words")

    def fail(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        models.average([new], final, force=True)
    assert final.exists()
    assert beside(final).read_text() == "of an earlier model"
    assert len(list(tmp_path.iterdir())) == 4


def test_safetensors_of_bfloat16_are_averaged_and_keep_their_metadata(tmp_path: Path) -> None:
    for number, bits in enumerate((0x3F80, 0x4040)):
        header = json.dumps(
            {"__metadata__": {"format": "pt"}, "w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
        ).encode()
        data = len(header).to_bytes(8, "little") + header + bits.to_bytes(2, "little")
        (tmp_path / f"{number}.safetensors").write_bytes(data)
    models.average([tmp_path], tmp_path.parent / "mean.safetensors", force=True)
    written = (tmp_path.parent / "mean.safetensors").read_bytes()
    assert written[:-2] == data[:-2]
    assert written[-2:] == (0x4000).to_bytes(2, "little")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_twenty_models_take_less_memory_than_one(tmp_path: Path) -> None:
    size = 64 << 20
    about = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"w": about}).encode()
    for number in range(20):
        with (tmp_path / f"{number:02}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)  # A hole: it takes no disk, and reads as zeros.
    program = (
        "import re, sys; from pumasi import models; models.average(sys.argv[2:], sys.argv[1], force=True);"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )

    def peak(*words: Path) -> int:
        command = [sys.executable, "-c", program, str(tmp_path / "final.safetensors"), *map(str, words)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 10

    small = safetensors_of_one(tmp_path / "small.safetensors")
    assert peak(*sorted(tmp_path.glob("[0-9]*.safetensors"))) - peak(small) < size // 2


def safetensors_of_one(path: Path) -> Path:
    save_safetensors(path, {"w": np.zeros(1, np.float32)})
    return path


def test_the_same_tensors_in_other_formats_are_equal(tmp_path: Path) -> None:
    several = some_models(1)
    (one,), (two,), (three,) = (save_all(tmp_path, kind, several) for kind in ("npz", "pt", "safetensors"))
    assert models.diff(one, two).different == []
    assert models.diff(three, two).different == []


def test_differences_are_measured(tmp_path: Path) -> None:
    one = {"w": np.array([3.0, 4.0]), "same": np.ones(2), "gone": np.ones(1), "shape": np.ones(2), "type": np.ones(1)}
    two = {
        "w": np.array([3.0, -4.0]),
        "same": np.ones(2),
        "new": np.ones(1),
        "shape": np.ones(3),
        "type": np.array([1]),
    }
    paths = save_all(tmp_path, "npz", [one, two])
    compared = models.diff(*paths)
    assert compared.equal == ["same"]
    by_name = {each.name: each for each in compared.different}
    assert (by_name["w"].largest, by_name["w"].relative) == (8, 1.6)
    assert by_name["w"].cosine == pytest.approx(-7 / 25)
    assert "only in" in by_name["gone"].why
    assert "only in" in by_name["new"].why
    assert by_name["shape"].why == "shape (2,) and (3,)"
    assert by_name["type"].why == "type float64 and int64"


def test_a_model_is_shown(tmp_path: Path) -> None:
    (path,) = save_all(tmp_path, "h5", some_models(1))
    shown = models.show(path)
    assert (shown.format, shown.framework) == ("HDF5", "Keras 3.0")
    table = next(each for each in shown.tensors if each.name == "table")
    assert table == ("table", (2, 3), "int64", 48, 0, 2.5, 5)
