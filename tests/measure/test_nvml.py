"""NVML read from a made-up one, as there need not be a GPU: energy, clocks, and links."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpbench.measure.nvml import DeviceMeter, gpu_links

UUIDS = {0: "aaaa", 1: "bbbb"}


class NVMLError(Exception):
    pass


class FakeNVML:
    """Two GPUs of which the second runs slower; counts what it was asked for."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1

    def __init__(self) -> None:
        self.millijoules = {"GPU-aaaa": 5_000, "GPU-bbbb": 70_000}
        self.broken: set[str] = set()

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        self._check("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        self._check("energy")
        return self.millijoules[handle]

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return {"GPU-aaaa": 1980, "GPU-bbbb": 1410}[handle]

    def _check(self, what: str) -> None:
        if what in self.broken:
            raise NVMLError(what)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNVML:
    def properties(device: torch.device) -> Any:
        return SimpleNamespace(uuid=UUIDS[device.index])

    fake = FakeNVML()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return fake


def test_energy_is_in_joules_of_one_device(nvml: FakeNVML) -> None:
    meter = DeviceMeter(["cuda:0"])
    assert meter.joules() == 5.0
    nvml.millijoules["GPU-aaaa"] += 1_500
    assert meter.joules() == 6.5
    assert meter.clock_hertz() == 1.98e9


def test_several_devices_add_up_and_the_slowest_clock_counts(nvml: FakeNVML) -> None:
    meter = DeviceMeter(["cuda:0", "cuda:1", "cuda:0"])
    assert meter.joules() == 75.0
    assert meter.clock_hertz() == 1.41e9


def test_without_a_driver_nothing_is_measured(nvml: FakeNVML) -> None:
    nvml.broken.add("init")
    assert DeviceMeter(["cuda:0"]).joules() is None


DEVICES = [torch.device("cuda", index) for index in range(3)]


class LinkedNVML:
    """GPUs 0 and 1 on NVLink, 2 behind another socket; the numbers are those of nvidia-ml-py."""

    NVMLError = NVMLError
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50

    def __init__(self) -> None:
        self.ancestor = 50
        self.tells = True

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:  # noqa: N802
        return SimpleNamespace(uuid=uuid)

    def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, index: int) -> int:  # noqa: N802
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        if not self.tells:
            raise NVMLError
        return 0 if {one.uuid, other.uuid} == {"GPU-0", "GPU-1"} else 4

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> int:  # noqa: N802
        return self.ancestor


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> LinkedNVML:
    def properties(device: torch.device) -> Any:
        return SimpleNamespace(uuid=device.index)

    fake = LinkedNVML()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return fake


def test_each_pair_has_its_way(linked: LinkedNVML) -> None:
    assert gpu_links(DEVICES) == (
        ("X", "NVLink", "SYS"),
        ("NVLink", "X", "SYS"),
        ("SYS", "SYS", "X"),
    )


@pytest.mark.parametrize(
    ("ancestor", "word"), [(0, "board"), (10, "PIX"), (30, "PHB"), (60, "NVML topology 60")]
)
def test_the_words_are_those_of_nvidia_smi(linked: LinkedNVML, ancestor: int, word: str) -> None:
    linked.ancestor = ancestor
    assert gpu_links(DEVICES[1:]) == (("X", word), (word, "X"))


def test_what_is_not_known_is_left_out(linked: LinkedNVML, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_links(DEVICES[:1]) == ()
    linked.tells = False
    assert gpu_links(DEVICES) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_links(DEVICES) == ()
