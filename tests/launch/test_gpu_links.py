"""NVML read from a made-up one, as there need not be a GPU."""

from __future__ import annotations

import pytest

from dpbench.launch.gpu_links import gpu_links
from tests.fake_nvml import FakeNvml, put_nvml

UUIDS = ["0", "1", "2"]


def test_each_pair_has_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    put_nvml(nvml, monkeypatch)
    assert gpu_links(UUIDS) == (
        ("X", "NVLink", "SYS"),
        ("NVLink", "X", "SYS"),
        ("SYS", "SYS", "X"),
    )
    nvml.ancestor = 60
    assert gpu_links(UUIDS[1:]) == (("X", "NVML topology 60"), ("NVML topology 60", "X"))


def test_links_that_are_not_known_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeNvml()
    assert gpu_links(UUIDS[:1]) == ()
    broken.broken = True
    for nvml in (broken, None):
        put_nvml(nvml, monkeypatch)
        assert gpu_links(UUIDS) == ()
