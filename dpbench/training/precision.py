"""Numbers of half the width: autocast in the forward pass, and the loss scale of float16.

Parameters, gradients and their reduction stay float32. bfloat16 has float32's range; float16 has
not, so its loss is scaled up before the backward pass, and a step whose gradients overflow is left
out: on all ranks alike, or their parameters and scales would part for ever.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler

from dpbench.training_spec import Dtype

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}

SMALLEST_SCALE = 1e-4
"""Below it gradients overflow at any scale, and steps would be left out until the end. The scale
begins at 65,536, so that is after 30 of them in a row. fairseq's --min-loss-scale."""


def autocast(device: torch.device, dtype: Dtype) -> AbstractContextManager[object]:
    """The context for a forward pass and its loss."""
    return nullcontext() if dtype == "f32" else torch.autocast(device.type, HALF[dtype])


def loss_scaler(
    device: torch.device, dtype: Dtype, voters: dist.ProcessGroup | None = None
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
