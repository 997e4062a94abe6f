"""Answers of nvidia-smi and rocm-smi as they were seen on real machines, and what Pumasi makes of them."""

from __future__ import annotations

import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pumasi import gpus
from pumasi.gpus import Gpu, list_gpus, parse_amd, parse_nvidia, visible

TWO_4090 = """\
0, GPU-6f3c1d2e-0f3a-1111-2222-333344445555, NVIDIA GeForce RTX 4090, 24564, 312, [N/A]
1, GPU-7a4d2e3f-0b1c-1111-2222-333344445555, NVIDIA GeForce RTX 4090, 24564, 18034, [N/A]
"""
BUSY_4090 = "GPU-7a4d2e3f-0b1c-1111-2222-333344445555, 55111\n"
DGX_SPARK = "0, GPU-2dee1e25-b3b5-007e-2b55-79f2d0f2ebe5, NVIDIA GB10, [N/A], [N/A], [N/A]\n"
A100_WITH_MIG = """\
0, GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16, NVIDIA A100-SXM4-80GB, 81920, 39, Enabled
1, GPU-eeb0f073-2f03-6035-72a3-7b1ac76c5a72, NVIDIA A100-SXM4-80GB, 81920, 2, Disabled
"""
A100_LISTING = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16)
  MIG 3g.40gb     Device  0: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54259e)
  MIG 1g.10gb     Device  1: (UUID: MIG-a25704ba-3a06-5299-a795-fd7cf4d13973)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-eeb0f073-2f03-6035-72a3-7b1ac76c5a72)
"""
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n"
RADEON = """\
{"card0": {"Unique ID": "0x9246deadbeef1234", "VRAM Total Memory (B)": "17163091968",
 "VRAM Total Used Memory (B)": "692142080", "Card Series": "Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]",
 "Card Model": "0x73bf", "Node ID": "1", "GUID": "45534", "GFX Version": "gfx1030"},
 "card1": {"Unique ID": "N/A", "VRAM Total Memory (B)": "67108864", "VRAM Total Used Memory (B)": "26079232",
 "Card Series": "Raphael", "Card Model": "0x164e", "Node ID": "2", "GUID": "52156", "GFX Version": "gfx1036"}}
"""
RADEON_PROCESSES = """\
============================ ROCm System Management Interface ============================
================================== GPUs Indexed by PID ===================================
PID 1168514 is using 1 DRM device(s):
0
PID 3722222 is using 0 DRM device(s)
==========================================================================================
"""


class Driver:
    """Answers as a machine's tools would; remembers what it was asked."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.asked: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> str:
        self.asked.append(command)
        line = " ".join(command)
        return next((text for part, text in self.answers.items() if part in line), "")


def names(found: Sequence[Gpu]) -> list[str]:
    return [gpu.number for gpu in found]


def test_two_ordinary_gpus_are_listed_and_the_one_with_a_compute_process_is_busy() -> None:
    first, second = parse_nvidia(TWO_4090, BUSY_4090, "")
    assert first == Gpu("nvidia", "0", first.uuid, "NVIDIA GeForce RTX 4090", 24564, 312, busy=False)
    assert first.handle == "GPU-6f3c1d2e-0f3a-1111-2222-333344445555"
    assert (second.memory_used, second.busy) == (18034, True)


def test_a_gpu_that_shares_the_memory_of_the_cpu_is_listed_without_a_size() -> None:
    (spark,) = parse_nvidia(DGX_SPARK, "", "")
    assert (spark.name, spark.memory_total, spark.memory_used) == ("NVIDIA GB10", None, None)


def test_a_gpu_cut_in_instances_is_listed_by_its_instances_since_only_they_can_be_used() -> None:
    found = parse_nvidia(A100_WITH_MIG, "MIG-a25704ba-3a06-5299-a795-fd7cf4d13973, 77\n", A100_LISTING)
    assert names(found) == ["0:0", "0:1", "1"]
    assert [gpu.busy for gpu in found] == [False, True, False]
    assert found[0].name == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert found[0].memory_total == 40 * 1024
    assert found[0].handle.startswith("MIG-feb88891")


def test_a_process_that_is_told_of_the_whole_gpu_makes_all_its_instances_busy() -> None:
    found = parse_nvidia(A100_WITH_MIG, "GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16, 77\n", A100_LISTING)
    assert [gpu.busy for gpu in found] == [True, True, False]


@pytest.mark.parametrize("said", ["", "No devices were found\n", MISMATCH, "ERROR: something, new, in, 2030, !\n"])
def test_whatever_is_not_a_list_of_gpus_means_that_there_is_none(said: str) -> None:
    assert parse_nvidia(said, "", "") == []
    assert parse_amd(said, "") == []


def test_radeon_cards_are_listed_with_bytes_turned_into_mebibytes() -> None:
    first, second = parse_amd("WARNING: AMD GPU device(s) is/are in a low-power state.\n" + RADEON, RADEON_PROCESSES)
    assert first.name == "Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]"
    assert (first.memory_total, first.busy, first.handle) == (16368, True, "0")
    assert (second.uuid, second.busy) == ("", False)


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    assert list_gpus({}, Driver()) == []


def test_programs_that_are_missing_count_as_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_gpus({}) == []
    assert gpus.complaint() == ""


def test_a_driver_too_old_to_know_of_instances_is_asked_without_them() -> None:
    def answer(command: Sequence[str]) -> str:
        return "0, GPU-1, Tesla K80, 11441, 0\n" if command[-1].endswith("memory.used") else ""

    assert [gpu.name for gpu in list_gpus({}, answer)] == ["Tesla K80"]


def test_instances_are_asked_for_only_where_there_are_some() -> None:
    plain = Driver(**{"--query-gpu": TWO_4090})
    list_gpus({}, plain)
    assert ["nvidia-smi", "-L"] not in plain.asked
    cut = Driver(**{"--query-gpu": A100_WITH_MIG, "-L": A100_LISTING})
    assert names(list_gpus({}, cut)) == ["0:0", "0:1", "1"]


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        (None, ["0", "1"]),
        ("1,0", ["1", "0"]),
        ("1", ["1"]),
        ("GPU-7a4d", ["1"]),
        ("0,-1,1", ["0"]),
        ("0,7,1", ["0"]),
        ("-1", []),
        ("", []),
        ("GPU-", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(allowed: str | None, left: list[str]) -> None:
    assert names(visible(parse_nvidia(TWO_4090, "", ""), allowed)) == left


def test_instances_are_named_by_uuid_only() -> None:
    found = parse_nvidia(A100_WITH_MIG, "", A100_LISTING)
    assert names(visible(found, "MIG-a25704ba-3a06-5299-a795-fd7cf4d13973")) == ["0:1"]
    assert names(visible(found, "0")) == []


def test_the_environment_of_the_caller_decides_what_is_listed() -> None:
    nvidia = Driver(**{"--query-gpu": TWO_4090})
    assert names(list_gpus({"CUDA_VISIBLE_DEVICES": "1"}, nvidia)) == ["1"]
    amd = Driver(**{"--showproductname": RADEON, "--showpidgpus": RADEON_PROCESSES})
    assert names(list_gpus({"HIP_VISIBLE_DEVICES": "1"}, amd)) == ["1"]
    assert names(list_gpus({"CUDA_VISIBLE_DEVICES": "0"}, amd)) == ["0"]


def test_the_words_of_a_broken_driver_are_kept_for_the_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!{sys.executable}\nprint({MISMATCH.strip()!r})\nraise SystemExit(18)\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_gpus({}) == []
    assert gpus.complaint().startswith("Failed to initialize NVML: Driver/library version mismatch NVML library")
