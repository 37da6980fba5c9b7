"""Reduced precision: autocast in the forward pass, the loss scale of float16, and TF32.

Parameters, gradients and their reduction stay float32. bfloat16 has float32's range; float16 does
not, so its loss is scaled up before the backward pass, and a step whose gradients overflow is
skipped: on all ranks alike, or their parameters and scales would diverge forever.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}


def set_tf32(dtype: str) -> None:
    """Use TF32 in all float32 products on CUDA if `dtype` is tf32. For f32 torch's defaults stay:
    TF32 in cuDNN's convolutions, float32 elsewhere."""
    if dtype == "tf32":
        torch.set_float32_matmul_precision("high")


def full_float32() -> None:
    """Forbid TF32, also in convolutions, for the rest of the process."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """The context for a forward pass and its loss."""
    return torch.autocast(device.type, HALF[dtype]) if dtype in HALF else nullcontext()


class AmpState:
    """The precision of one rank's steps, and the scale of their loss.

    To decide whether to step in float16, torch's scaler waits for the device once per step. A
    reduction of gradients spreads an overflow on one rank to all. Where gradients stay local, the
    ranks of `process_group` skip a step together if any of them has to: torch's scaler for sharded
    gradients lets them decide by a collective of one number.
    """

    def __init__(
        self, device: torch.device, dtype: str, process_group: dist.ProcessGroup | None = None
    ) -> None:
        self.autocast = autocast(device, dtype)
        """Context for each forward pass and its loss, reused in turn."""
        self.scaler = GradScaler(device.type, enabled=dtype == "f16")
        if dtype == "f16" and process_group is not None:
            # Imported here only: it loads all of torch's FSDP, which takes a second.
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            self.scaler = ShardedGradScaler(device.type, process_group=process_group)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step on gradients of the scaled loss, unless they overflowed."""
        self.scaler.step(optimizer)
        self.scaler.update()


FLOAT32 = AmpState(torch.device("cpu"), "f32")
