"""Changes to a module before it is wrapped: memory format, recomputation, compilation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpbench.data.batch import channels_last
from dpbench.data.datasets import Dataset
from dpbench.errors import UsageError
from dpbench.specs import WorkloadSpec


def prepare(module: nn.Module, workload: WorkloadSpec) -> nn.Module:
    """Change `module` in place as the workload says and return it; its parameters stay the same
    objects.

    Raises UsageError if it has no blocks whose activations could be recomputed.
    """
    if workload.channels_last:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if workload.checkpoint_activations:
        recompute_blocks(module)
    if workload.compile != "none":
        # In place, so that the names of parameters, the hooks and copies stay the module's.
        mode = None if workload.compile == "default" else workload.compile
        module.compile(mode=mode)
    return module


def in_layout(dataset: Dataset, workload: WorkloadSpec) -> Dataset:
    """The samples with images in the module's memory format; batches taken from them keep it."""
    return dataset.map(channels_last) if workload.channels_last else dataset


def recompute_blocks(module: nn.Module) -> None:
    """Make each block keep only its input for the backward pass, and rerun its forward there.

    A block is a child of a Sequential or a ModuleList that has children and parameters of its
    own: a layer of a transformer, a residual block. Raises UsageError if there is none.
    """
    found = list(blocks_to_recompute(module))
    if not found:
        raise UsageError(
            f"checkpoint activations: {type(module).__name__} has no blocks that could be computed "
            "again; expected modules with layers of their own inside an nn.Sequential or "
            "nn.ModuleList"
        )
    for block in found:
        # A subclass, not a new forward: copies of the block then run their own parameters.
        kind = type(block)
        block.__class__ = type(kind.__name__, (_Recomputed, kind), {})


def blocks_to_recompute(module: nn.Module) -> Iterator[nn.Module]:
    """The members of lists of layers that have layers and parameters of their own."""
    for member in members(module):
        if any(True for _ in member.children()) and any(True for _ in member.parameters()):
            yield member


class _Recomputed(nn.Module):
    """Base class placed before a block's own class, whose forward it runs."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        # When compiled, torch itself updates buffers only once, and accepts no contexts.
        contexts: dict[str, Any] = {}
        if not torch.compiler.is_compiling():
            contexts["context_fn"] = lambda: (nullcontext(), _buffers_kept(self))
        return checkpoint(super().forward, *inputs, use_reentrant=False, **contexts, **named)


@contextmanager
def _buffers_kept(block: nn.Module) -> Iterator[None]:
    """A context around the repeated forward that restores buffers, so that running means, as in a
    BatchNorm, count a batch once."""
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


LISTS = (nn.Sequential, nn.ModuleList)


def members(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost members of every Sequential and ModuleList, in order; neither the lists
    themselves nor lists inside a member."""
    for child in module.children():
        if isinstance(module, LISTS) and not isinstance(child, LISTS):
            yield child
        else:
            yield from members(child)
