"""Libraries get the devices of the trial, of which they would choose others."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpbench.measure.implementations import wrap
from tests.builders import trial_spec

pytestmark = pytest.mark.full
MODULE = torch.nn.Linear(2, 2)
GPUS = ("cuda:2", "cuda:3", "cuda:0")


def test_accelerate_takes_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate

    seen: list[tuple[bool, str | None]] = []

    class Recorded:
        def __init__(self, *, cpu: bool, device_placement: bool) -> None:
            seen.append((cpu, os.environ.get("LOCAL_RANK")))

        def prepare_model(self, module: torch.nn.Module) -> torch.nn.Module:
            return module

    monkeypatch.setattr(accelerate, "Accelerator", Recorded)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for devices in (GPUS, ("cpu",) * 3):
        trial = trial_spec(
            implementation="accelerate", backend="gloo", group_size=3, devices=devices
        )
        wrap(MODULE, trial, 1)
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

    seen: list[tuple[str, Any, int]] = []

    def recorded(*, accelerator: str, devices: Any, num_nodes: int, strategy: Any) -> Any:
        seen.append((accelerator, devices, num_nodes))
        return SimpleNamespace(
            launch=lambda: None, setup_module=lambda module, move_to_device: module
        )

    monkeypatch.setattr(fabric, "Fabric", recorded)
    trial = trial_spec(
        implementation="fabric",
        backend="gloo",
        group_size=len(devices),
        devices=devices,
        nodes=nodes,
    )
    wrap(MODULE, trial, rank)
    assert seen == [expected]
