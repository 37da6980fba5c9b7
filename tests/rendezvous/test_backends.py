"""Which backends ranks cannot use here, and why."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dpbench.rendezvous.backends import missing_backends, missing_reason
from dpbench.specs.traits import BACKENDS


def test_each_backend_is_usable_or_says_why_not() -> None:
    missing = missing_backends()
    assert not {"gloo", "shm"} & {*missing}
    if not torch.cuda.is_available():
        assert [*missing] == ["nccl", "nccl-legacy", "nccl2"]
        assert all(missing.values())


@pytest.mark.parametrize(
    ("function", "answer", "backend", "gpus", "reason"),
    [
        ("is_available", False, "shm", 2, "torch was built without torch.distributed"),
        ("is_gloo_available", False, "gloo", 2, "torch was built without gloo"),
        ("is_nccl_available", False, "nccl", 2, "torch was built without nccl"),
        ("is_nccl_available", True, "nccl", 1, None),
        (
            *("is_nccl_available", True, "nccl", 0),
            "nccl needs a CUDA device; this machine has none",
        ),
        (
            *("is_nccl_available", True, "nccl3", 2),
            f"torch {torch.__version__} has no backend nccl3",
        ),
    ],
)
def test_what_torch_was_built_without_and_nccl_without_a_gpu_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    answer: bool,
    backend: str,
    gpus: int,
    reason: str | None,
) -> None:
    monkeypatch.setattr(dist, function, lambda: answer)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setitem(BACKENDS, "nccl3", BACKENDS["nccl"])
    assert missing_reason(backend) == reason
