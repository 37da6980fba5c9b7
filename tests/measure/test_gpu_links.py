"""Ways between GPUs, read from a made-up NVML: there need not be a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpbench.measure.gpu_links import gpu_links

DEVICES = [torch.device("cuda", index) for index in range(3)]


class NVMLError(Exception):
    pass


class FakeNVML:
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
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNVML:
    def properties(device: torch.device) -> Any:
        return SimpleNamespace(uuid=device.index)

    fake = FakeNVML()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return fake


def test_each_pair_has_its_way(nvml: FakeNVML) -> None:
    assert gpu_links(DEVICES) == (
        ("X", "NVLink", "SYS"),
        ("NVLink", "X", "SYS"),
        ("SYS", "SYS", "X"),
    )


@pytest.mark.parametrize(
    ("ancestor", "word"), [(0, "board"), (10, "PIX"), (30, "PHB"), (60, "NVML topology 60")]
)
def test_the_words_are_those_of_nvidia_smi(nvml: FakeNVML, ancestor: int, word: str) -> None:
    nvml.ancestor = ancestor
    assert gpu_links(DEVICES[1:]) == (("X", word), (word, "X"))


def test_what_is_not_known_is_left_out(nvml: FakeNVML, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_links(DEVICES[:1]) == ()
    nvml.tells = False
    assert gpu_links(DEVICES) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_links(DEVICES) == ()
