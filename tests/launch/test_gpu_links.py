"""NVML read from a made-up one, as there need not be a GPU."""

from __future__ import annotations

import sys

import pytest

from dpbench.launch.gpu_links import gpu_links
from tests.fake_nvml import FakeNvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


UUIDS = ["0", "1", "2"]


def test_each_pair_has_its_way(nvml: FakeNvml) -> None:
    assert gpu_links(UUIDS) == (
        ("X", "NVLink", "SYS"),
        ("NVLink", "X", "SYS"),
        ("SYS", "SYS", "X"),
    )
    nvml.ancestor = 60
    assert gpu_links(UUIDS[1:]) == (("X", "NVML topology 60"), ("NVML topology 60", "X"))


def test_links_that_are_not_known_are_left_out(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu_links(UUIDS[:1]) == ()
    nvml.broken = True
    assert gpu_links(UUIDS) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_links(UUIDS) == ()
