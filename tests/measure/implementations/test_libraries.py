"""Libraries get the devices of the settings, of which they would choose others."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import ANY, Mock

import pytest
import torch

from dpbench.measure.implementations import wrap
from tests.builders import configuration

pytestmark = pytest.mark.full
MODULE = torch.nn.Linear(2, 2)
GPUS = ("cuda:2", "cuda:3", "cuda:0")


def test_accelerate_takes_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate

    seen: list[tuple[bool, str | None]] = []

    def recorded(*, cpu: bool, device_placement: bool) -> Mock:
        seen.append((cpu, os.environ.get("LOCAL_RANK")))
        return Mock()

    monkeypatch.setattr(accelerate, "Accelerator", recorded)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for devices in (GPUS, ("cpu",) * 3):
        settings = configuration(
            implementation="accelerate", backend="gloo", group_size=3, devices=devices
        )
        wrap(MODULE, settings, 1)
    assert seen == [(False, "3"), (True, "1")]
    assert os.environ["LOCAL_RANK"] == "1"


@pytest.mark.parametrize(
    ("devices", "nodes", "rank", "expected"),
    [
        (GPUS, (), 1, ("cuda", [2, 3, 0], 1)),
        (("cuda:2", "cuda:3", "cuda:0", "cuda:1"), (2, 2), 3, ("cuda", [0, 1], 2)),
        (("cpu",) * 3, (), 1, ("cpu", 3, 1)),
    ],
)
def test_fabric_takes_the_gpus_of_its_host(
    devices: tuple[str, ...],
    nodes: tuple[int, ...],
    rank: int,
    expected: tuple[str, Any, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import lightning_fabric as fabric

    recorded = Mock()
    monkeypatch.setattr(fabric, "Fabric", recorded)
    settings = configuration(
        implementation="fabric",
        backend="gloo",
        group_size=len(devices),
        devices=devices,
        replicas_by_node=nodes,
    )
    wrap(MODULE, settings, rank)
    accelerator, its_devices, num_nodes = expected
    recorded.assert_called_once_with(
        accelerator=accelerator, devices=its_devices, num_nodes=num_nodes, strategy=ANY
    )
