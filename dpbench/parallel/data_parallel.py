"""DataParallel: one process, one replica of the module per device, one thread per replica."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from dpbench.parallel.devices import DeviceLike, parse_device, parse_devices
from dpbench.parallel.gather import gather_outputs, weighted_scalars
from dpbench.parallel.parallel_apply import parallel_apply
from dpbench.parallel.reduction import Reduction
from dpbench.parallel.replicate import Replicator, check_location
from dpbench.parallel.scatter import scatter_shards
from dpbench.parallel.state_dicts import load_all_or_nothing
from dpbench.parallel.tree import tensors
from dpbench.parallel.workers import WorkerPool


class DataParallel(nn.Module):
    """Splits each batch over replicas of `module`, in threads, and gathers their outputs.

    `criterion(dp(x), y).backward()` gives the parameters of `module` the gradients that it would
    have without the wrapper, however many replicas there are and however uneven their chunks.

    - Tensors at any depth of the arguments are split along `dim`; 0-dim tensors and other objects
      go to every replica. With fewer samples than devices, fewer replicas run; a call without
      tensors runs one. A single replica is a plain call of `module`.
    - Outputs keep their structure; tensors are concatenated. A 0-dim output, such as a loss,
      becomes Σ n_r/N · loss_r, with n_r of the N samples in replica r, or the plain sum.
    - Buffers: what replica 0 writes (running statistics of its chunk) stays, the rest is lost.
    - A second derivative through the wrapper is refused by torch ("once_differentiable"). Only
      parameters and arguments get gradients, not tensors a module captured otherwise.
    - Dropout draws from torch's one CPU generator in an order that depends on the threads.

    Args:
        module: on the first device; neither it nor the identity of its parameters is changed.
        device_ids: CUDA indices, strings or torch.devices; None means all CUDA devices.
            ["cpu"] * n runs n replicas on the CPU that share the parameters' memory.
        output_device: where the outputs are gathered; None means the first device.
        dim: the batch dimension of inputs and outputs.
        threads_per_replica: intra-op threads of a CPU replica; None divides the threads of the
            first caller evenly.
        loss_reduction: "mean" if a 0-dim output is a mean over the replica's samples, "sum" if it
            is a sum over them.

    Raises:
        TypeError, ValueError: a device that cannot be used, a module that is not on the first
            device, or another argument out of its range; the message has the value.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[DeviceLike] | None = None,
        output_device: DeviceLike | None = None,
        dim: int = 0,
        *,
        threads_per_replica: int | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__()
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"got loss_reduction={loss_reduction!r}, expected 'mean' or 'sum'")
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"got dim={dim!r}, expected an int")
        if threads_per_replica is not None and threads_per_replica < 1:
            raise ValueError(f"got threads_per_replica={threads_per_replica}, expected 1 or more")
        self.devices = parse_devices(device_ids)
        self.output_device = (
            self.devices[0] if output_device is None else parse_device(output_device)
        )
        check_location(
            dict(module.named_parameters()), dict(module.named_buffers()), self.devices[0]
        )
        self.dim = dim
        self.loss_reduction = loss_reduction
        self.module = module
        self._replicator = Replicator(self.devices)
        self._workers = WorkerPool(self.devices, threads_per_replica)
        self._reduction = Reduction(self.devices[0])
        self._reduces = True
        self._last_loss = _LastLoss()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """scatter → replicate → parallel_apply → gather.

        Raises:
            IndexError: an input has no dimension `dim`; before any replica runs.
            ValueError: inputs that disagree on the batch size or have none, a parameter on the
                wrong device, or outputs that do not fit together.
            Exception: what a replica raises, with "Caught ... in replica i on device d".
        """
        self._last_loss.forget()
        shards = scatter_shards((args, kwargs), self.devices, self.dim)
        if len(shards.values) == 1:
            [(args, kwargs)] = shards.values
            outputs = [self.module(*args, **kwargs)]
        else:
            outputs = parallel_apply(
                self._replicator.replicate(self.module, len(shards.values)),
                shards.values,
                list(self.module.parameters()),
                self._workers,
                self._reduction,
                reduces=self._reduces,
            )
        scalar_rule = weighted_scalars(self.loss_reduction, shards.weights)
        output = gather_outputs(outputs, self.output_device, self.dim, scalar_rule)
        self._last_loss.remember(output)
        return output

    def backward(self, scale: float = 1.0) -> None:
        """Add `scale` × the gradient of the last forward's loss to the parameters' `.grad`.

        The loss is the only 0-dim floating-point tensor of the output. The same as
        `(scale * loss).backward()` on it; for k accumulated micro-batches of equal size give
        scale = 1/k. The last output stays in memory until then or until the next forward.

        Raises:
            RuntimeError: before any forward, a second time after one, without exactly one loss in
                the output, or after a forward without gradients.
            ValueError: a scale that is no finite number.
        """
        number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
        if not number or not math.isfinite(scale):
            raise ValueError(f"got scale={scale!r}, expected a finite number")
        loss = self._last_loss.take()
        torch.autograd.backward(loss, torch.full_like(loss, scale))

    @contextmanager
    def without_reduction(self) -> Iterator[None]:
        """Leave the sum over replicas out of the backward of forwards made in this context.

        For measuring what the reduction costs: all replicas compute their gradients, but the
        parameters get those of replica 0 alone, which are not the gradients of the batch. (For
        accumulation nothing is needed: plain backward calls add up.)
        """
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def close(self) -> None:
        """End the replicas' threads; a later forward starts new ones."""
        self._workers.close()

    @property
    def wrapped_module(self) -> nn.Module:
        """The same object as `module`."""
        return self.module

    @property
    def reduced_bytes(self) -> int:
        """Bytes of gradients summed over replicas since construction."""
        return self._reduction.reduced_bytes

    @property
    def reductions(self) -> int:
        """Backward passes in which gradients were summed since construction."""
        return self._reduction.reductions

    @property
    def replicated_bytes(self) -> int:
        """Bytes copied to make replicas since construction; shared memory is not copied."""
        return self._replicator.replicated_bytes

    def forget_replicas(self) -> None:
        """Copy all parameters anew, after writes through `.data` that torch does not count."""
        self._replicator.forget()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of `module`: its keys have no prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load into `module`, all or nothing, with or without "module." before the keys."""
        return load_all_or_nothing(self.module, state_dict, strict=strict, assign=assign)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of `module`: the names have no prefix."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """Those of `module`: the names have no prefix."""
        return self.module.named_buffers(*args, **kwargs)

    def extra_repr(self) -> str:
        devices = ", ".join(str(device) for device in self.devices)
        return f"devices=[{devices}], output_device={self.output_device}, dim={self.dim}"


class _LastLoss:
    """The loss of the last forward, or why there is none; a copy or a pickle of it is empty."""

    def __init__(self) -> None:
        self._loss: Tensor | None = None
        self._reason = "there was no forward yet"

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def forget(self) -> None:
        self._loss, self._reason = None, "the last forward failed"

    def remember(self, output: Any) -> None:
        losses = [t for t in tensors(output) if t.dim() == 0 and t.is_floating_point()]
        if len(losses) != 1:
            self._reason = (
                f"the last output has {len(losses)} 0-dim floating-point tensors, expected one loss"
            )
        elif not losses[0].requires_grad:
            self._reason = "the last forward recorded no gradients (no_grad, or nothing to train)"
        else:
            [self._loss] = losses

    def take(self) -> Tensor:
        """The loss, once.

        Raises:
            RuntimeError: with the reason why there is none.
        """
        if self._loss is None:
            raise RuntimeError(f"backward is not possible: {self._reason}")
        loss = self._loss
        self._loss, self._reason = None, "the last forward has had its backward"
        return loss
