"""NVML made up, as there need not be a GPU; the numbers are those of nvidia-ml-py."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dpbench.measure.nvml import open_gpus


class NvmlError(Exception):
    pass


class FakeNvml:
    """Stands for the module pynvml: GPUs 0 and 1 on NVLink, and 2 behind another socket. All run
    at `clock`, with the bits `reasons` for it."""

    NVMLError = NvmlError
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK, NVML_CLOCK_SM = 2, 0, 1

    def __init__(self) -> None:
        self.ancestor, self.clock, self.reasons, self.opened = 50, 1755, 0, 0
        self.broken = False

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        self.opened += 1
        if self.broken:
            raise NvmlError

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        return SimpleNamespace(number=int(uuid.removeprefix("GPU-")))

    def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, index: int) -> int:  # noqa: N802
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if {one.number, other.number} == {0, 1} else 4

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> int:  # noqa: N802
        return self.ancestor

    def nvmlDeviceGetClockInfo(self, gpu: Any, kind: int) -> int:  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return self.clock

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Any) -> int:  # noqa: N802
        if self.broken:
            raise NvmlError
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Any) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]


def put_nvml(nvml: FakeNvml | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process find this NVML, or none, when it opens it for the first time."""
    open_gpus.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
