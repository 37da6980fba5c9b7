"""Numbers of fewer bits: autocast in the forward pass, the loss scale of float16, and TF32.

Parameters, gradients and their reduction stay float32. bfloat16 has float32's range; float16 has
not, so its loss is scaled up before the backward pass, and a step whose gradients overflow is left
out: on all ranks alike, or their parameters and scales would part for ever.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}

SMALLEST_SCALE = 1e-4
"""Below it gradients overflow at any scale, and steps would be left out until the end. The scale
begins at 65,536, so that is after 30 of them in a row. fairseq's --min-loss-scale."""


def choose_products(dtype: str) -> None:
    """Lets products of float32 on CUDA be TF32's if that is the dtype, and float32's if not: left
    to itself torch takes TF32 in convolutions and float32 elsewhere."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"


class Numbers:
    """How the steps of one rank compute: in which numbers, and with which scale of the loss."""

    def __init__(
        self, device: torch.device, dtype: str, voters: dist.ProcessGroup | None = None
    ) -> None:
        self.autocast = autocast(device, dtype)
        """For each forward pass and its loss in turn."""
        self.scaler = _loss_scaler(device, dtype, voters)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """What to call backward on."""
        scaled: torch.Tensor = self.scaler.scale(loss)
        return scaled

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's step on gradients of the scaled loss, unless they overflowed."""
        self.scaler.step(optimizer)
        self.scaler.update()


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """The context for a forward pass and its loss."""
    return torch.autocast(device.type, HALF[dtype]) if dtype in HALF else nullcontext()


def _loss_scaler(
    device: torch.device, dtype: str, voters: dist.ProcessGroup | None = None
) -> GradScaler:
    """Scales the losses of float16; for other dtypes it does nothing.

    To know whether to step, torch's scaler waits for the device once a step.

    After a reduction of gradients an overflow on one rank has reached all. Where gradients stay
    local, `voters` are the ranks that leave a step out together if any has to: torch's scaler for
    sharded gradients lets them decide by a collective of one number.
    """
    if dtype != "f16":
        return GradScaler(device.type, enabled=False)
    if voters is None:
        return GradScaler(device.type)
    # Imported where it is needed, as all of torch's FSDP comes with it, for a second.
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device.type, process_group=voters)


FLOAT32 = Numbers(torch.device("cpu"), "f32")
