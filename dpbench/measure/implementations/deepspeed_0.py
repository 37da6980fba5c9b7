"""`deepspeed-0`: DeepSpeed's engine without ZeRO, which averages all gradients after the backward
pass.

Stages 1 to 3 are not supported: they are part of the optimizer, which the engine then owns. It
frees the gradients in its own step, before they can be compared, and stage 3 leaves parameters
empty.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from dpbench.measure.implementations.model import (
    Settings,
    Unreported,
    averaging_weight,
    threads_kept,
)
from dpbench.temporary import temporary_variables

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

TRAITS = {
    "order": 100,
    "description": "DeepSpeed's engine at ZeRO stage 0: one all-reduce after backward",
    "can_leave_out_sync": True,
    "requires": "deepspeed",
    "reduces_double": False,
}


CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,  # required; only counts samples
    "gradient_accumulation_steps": 1,  # the training loop divides the loss itself
    "zero_optimization": {"stage": 0},
    "timers": {"throughput": {"enabled": False}},  # would wait for the device in every forward
}


class DeepSpeedModel(Unreported):
    """A module whose gradients an engine averages; the optimizer stays outside the engine.

    The module is called without the engine, whose `forward` would turn autocast off on CUDA.
    """

    def __init__(
        self, engine: DeepSpeedEngine, module: torch.nn.Module, loss_weight: float
    ) -> None:
        super().__init__(module, loss_weight)
        self._engine = engine

    def no_sync(self) -> AbstractContextManager[None]:
        unreduced: AbstractContextManager[None] = self._engine.no_sync()
        return unreduced

    def backward(self, loss: torch.Tensor) -> None:
        self._engine.backward(loss)


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> DeepSpeedModel:
    """Wrap `module` at DeepSpeed's defaults with stage 0, in the existing process group."""
    device = torch.device(settings.devices[rank])
    local = {"DS_ACCELERATOR": device.type, "LOCAL_RANK": str(device.index or 0)}
    with threads_kept(), temporary_variables(local):
        from deepspeed import initialize, ops

        # Without compiled extensions: it would build, with the machine's compiler, an
        # all-reduce for inference that no training uses.
        ops.__compatible_ops__ = {}
        # An engine refuses backward without an optimizer; this one never steps.
        unused = torch.optim.SGD(module.parameters(), lr=0.0)
        engine, *_ = initialize(
            model=module, optimizer=unused, config=CONFIG, dist_init_required=False
        )
    return DeepSpeedModel(engine, module, averaging_weight(settings, rank))
