"""DataParallel: one process, one replica of the module per device, one thread per replica."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.devices import DeviceLike, parse_device, parse_devices
from dpbench.parallel.dp.parallel_apply import ParallelApply
from dpbench.parallel.dp.replicate import Replicator, tensors_on
from dpbench.parallel.dp.scatter_gather import gather_outputs, scatter
from dpbench.parallel.phase_clock import PhaseClock
from dpbench.parallel.state_dicts import LoadsUnwrapped
from dpbench.parallel.tree import tensors


class DataParallel(LoadsUnwrapped, nn.Module):
    """Splits each batch over replicas of `module`, in threads, and gathers their outputs.

    `criterion(dp(x), y).backward()` gives the parameters of `module` the gradients that it would
    have without the wrapper, however many replicas there are and however uneven their chunks.

        dp = DataParallel(model.cuda(), [0, 1])
        loss = criterion(dp(inputs), targets)  # inputs: (samples, …), split over both GPUs
        loss.backward()
        optimizer.step()  # of model.parameters()

    - Tensors at any depth of the arguments are split along `dim`; 0-dim tensors and other objects
      go to every replica. With fewer samples than devices, fewer
      replicas run; a call without tensors runs one. A single replica is a plain call of `module`.
    - Outputs keep their structure; tensors are concatenated. A 0-dim output, such as a loss,
      becomes Σ n_r/N · loss_r, with n_r of the N samples in replica r, or the plain sum.
    - Buffers: what replica 0 writes stays, the rest is lost. A batch norm normalizes each replica's
      chunk alone, and its running statistics are those of replica 0.
    - Gradients reach parameters and arguments; not other tensors with a history that `forward`
      uses, such as a buffer that requires a gradient or a tensor in a closure.
    - Not supported: PackedSequence inputs, a second backward with retain_graph, loading a state
      dict into a module that contains the wrapper, copying or pickling it, and what the page
      dpbench.parallel of the documentation names. Checkpoints inside `module` need
      use_reentrant=False.
    - Random numbers: replicas on the CPU draw from streams of their own, which torch.manual_seed
      repeats; see random_streams.py. On CUDA each device has its generator, as always in torch;
      torch.manual_seed gives all of them the same seed.

    Args:
        module: on the first device; neither it nor the identity of its parameters is changed.
        device_ids: CUDA indices, strings or torch.devices; None means all CUDA devices.
            ["cpu"] * n runs n replicas on the CPU, which share the parameters' memory and divide
            the threads of torch.get_num_threads.
        output_device: where the outputs are gathered; None means the first device.
        dim: the batch dimension of inputs and outputs.
        loss_reduction: "mean" if a 0-dim output is a mean over the replica's samples, "sum" if it
            is a sum over them.
        cache: copy the parameters to other devices only if the originals have changed. False
            copies them in each forward, which code that writes through `.data` needs: torch does
            not count such writes.

    Raises:
        TypeError, ValueError: a device that cannot be used, CPU and CUDA devices together, a
            module that is not on the first device, or another argument out of its range; the
            message has the value.
        RuntimeError: this process is one of several ranks, whose replicas would train apart.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[DeviceLike] | None = None,
        output_device: DeviceLike | None = None,
        dim: int = 0,
        *,
        loss_reduction: Literal["mean", "sum"] = "mean",
        cache: bool = True,
    ) -> None:
        super().__init__()
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise RuntimeError(
                "DataParallel drives all replicas from one process, but this is rank "
                f"{dist.get_rank()} of {dist.get_world_size()}: the ranks would train apart; use "
                "DistributedDataParallel in each, or DataParallel in a single process"
            )
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"got loss_reduction={loss_reduction!r}, expected 'mean' or 'sum'")
        self.devices = parse_devices(device_ids)
        self.output_device = parse_device(
            self.devices[0] if output_device is None else output_device
        )
        tensors_on(self.devices[0], module)
        self.dim = dim
        self.loss_reduction = loss_reduction
        self.module = module
        self._replicator = Replicator(self.devices, cache=cache)
        self.clock = PhaseClock()
        self._parallel_apply = ParallelApply(self.devices, self.clock)
        self._reduces = True
        self._last_loss: Tensor | str = "there was no forward yet"
        """The loss that `backward` takes, or why there is none."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Scatter the batch, replicate the module, run the replicas in parallel, gather the
        outputs.

        Raises:
            IndexError: an input has no dimension `dim`; raised before any replica runs.
            ValueError: inputs that disagree on the batch size or have none, a parameter on the
                wrong device, or outputs that do not fit together.
            RuntimeError: several replicas within torch.utils.checkpoint.
            Exception: what a replica raises, with a note of the replica and its device.
        """
        self._last_loss = "the last forward failed"
        self.clock.enter("scatter")
        calls = scatter((args, kwargs), self.devices, self.dim)
        weights = [1.0] * len(calls)
        if self.loss_reduction == "mean" and len(calls) > 1:
            sizes = [next(t.size(self.dim) for t in tensors(call) if t.dim()) for call in calls]
            weights = [size / sum(sizes) for size in sizes]
        if len(calls) == 1:
            [(inputs, options)] = calls
            outputs = [self.module(*inputs, **options)]
        else:
            self.clock.enter("replicate")
            replicas = self._replicator.replicate(self.module, len(calls))
            trained = [p for p in self.module.parameters() if p.requires_grad]
            outputs = self._parallel_apply.forward(replicas, calls, trained, reduces=self._reduces)
        self.clock.enter("gather")
        output = gather_outputs(outputs, self.output_device, self.dim, weights)
        self.clock.enter(None)
        losses = [t for t in tensors(output) if t.dim() == 0 and t.is_floating_point()]
        if len(losses) != 1:
            self._last_loss = (
                f"the last output has {len(losses)} 0-dim floating-point tensors, expected one "
                "loss; call backward of the loss itself"
            )
        elif losses[0].requires_grad:
            self._last_loss = losses[0]
        else:
            self._last_loss = "the last forward recorded no gradients (no_grad, or none to train)"
        return output

    def backward(self, scale: float = 1.0) -> Tensor:
        """Add `scale` × the gradient of the last forward's loss to the parameters' `.grad`.

        The same as `(scale * loss).backward()` on the returned loss. To accumulate over
        micro-batches with a mean loss, scale each by its share of the samples. The last output
        stays in memory until then or until the next forward.

        Returns:
            The loss, 0-dim, not scaled, without graph.

        Raises:
            RuntimeError: before any forward, a second time after one, after a backward from the
                loss itself (from torch, as its graph is gone), without the loss in the output, or
                after a forward without gradients.
            ValueError: a scale that is no finite number.
        """
        number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
        if not number or not math.isfinite(scale):
            raise ValueError(f"got scale={scale!r}, expected a finite number")
        loss = self._last_loss
        if isinstance(loss, str):
            raise RuntimeError(f"backward is not possible after the last forward: {loss}")
        self._last_loss = "it has had its backward"
        torch.autograd.backward(loss, torch.full_like(loss, scale))
        return loss.detach()

    @contextmanager
    def unsynced(self) -> Iterator[None]:
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

    @property
    def reduced_bytes(self) -> int:
        """Bytes of dense gradients summed over replicas since construction."""
        return self._parallel_apply.reduced_bytes

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a DataParallel cannot be copied or pickled; copy or save its module")

    @property
    def wrapped_module(self) -> nn.Module:
        """The same object as `module`."""
        return self.module

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of `module`: its keys have no prefix."""
        return self.module.state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of `module`: the names have no prefix."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """The buffers of `module`: the names have no prefix."""
        return self.module.named_buffers(*args, **kwargs)

    def extra_repr(self) -> str:
        devices = ", ".join(str(device) for device in self.devices)
        output, cache = self.output_device, self._replicator.cache
        return f"devices=[{devices}], output_device={output}, dim={self.dim}, cache={cache}"
