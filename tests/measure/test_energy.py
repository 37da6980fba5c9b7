"""NVML's counters, read from a made-up one: there need not be a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpbench.measure.energy import DeviceMeter

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


def test_a_device_that_does_not_tell_has_no_energy_but_its_clock(nvml: FakeNVML) -> None:
    nvml.broken.add("energy")
    meter = DeviceMeter(["cuda:0"])
    assert meter.joules() is None
    assert meter.clock_hertz() == 1.98e9


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_a_cpu_has_no_counter(nvml: FakeNVML, devices: list[str]) -> None:
    meter = DeviceMeter(devices)
    assert (meter.joules(), meter.clock_hertz()) == (None, None)


def test_without_a_driver_nothing_is_measured(nvml: FakeNVML) -> None:
    nvml.broken.add("init")
    assert DeviceMeter(["cuda:0"]).joules() is None


def test_without_the_extra_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = DeviceMeter(["cuda:0"])
    assert (meter.joules(), meter.clock_hertz()) == (None, None)
