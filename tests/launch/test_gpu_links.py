"""NVML read from a made-up one, as there need not be a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dpbench.launch.gpu_links import gpu_links


class NVMLError(Exception):
    pass


class FakeNVML:
    """GPUs 0 and 1 on NVLink, and 2 behind another socket; the numbers are those of
    nvidia-ml-py."""

    NVMLError = NVMLError
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0

    def __init__(self) -> None:
        self.ancestor = 50
        self.broken = False

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if self.broken:
            raise NVMLError

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        return SimpleNamespace(number=int(uuid.removeprefix("GPU-")))

    def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, index: int) -> int:  # noqa: N802
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if {one.number, other.number} == {0, 1} else 4

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> int:  # noqa: N802
        return self.ancestor


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNVML:
    fake = FakeNVML()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


UUIDS = ["0", "1", "2"]


def test_each_pair_has_its_way(nvml: FakeNVML) -> None:
    assert gpu_links(UUIDS) == (
        ("X", "NVLink", "SYS"),
        ("NVLink", "X", "SYS"),
        ("SYS", "SYS", "X"),
    )
    nvml.ancestor = 60
    assert gpu_links(UUIDS[1:]) == (("X", "NVML topology 60"), ("NVML topology 60", "X"))


def test_links_that_are_not_known_are_left_out(
    nvml: FakeNVML, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu_links(UUIDS[:1]) == ()
    nvml.broken = True
    assert gpu_links(UUIDS) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_links(UUIDS) == ()
