"""torch's distributed tests as they ship in its wheel, called one by one on a rank.

Only ranks import this: torch's module of tests reads the environment when it is imported.
"""

from __future__ import annotations

import functools
import os
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal import common_distributed

from dpbench.parallel import DistributedDataParallel
from tests.conformance.one_device import stand_in

# Which tests there are, and for how many ranks, is decided when they are imported.
os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(dist.get_world_size())}
UNTOUCHED = ("dpbench", "tests.", "torch._dynamo")
"""Modules that keep torch's class. The compiler splits graphs at the buckets of torch's; any other
it takes as it is."""


def _as_it_is(test: Any) -> Any:
    return test


def _skip_above(count: int, **_: Any) -> Callable[[Any], Any]:
    """In place of the decorator that wants `count` GPUs: one per rank stands in (one_device)."""
    too_few = count > dist.get_world_size()
    return unittest.skip(f"needs {count} ranks") if too_few else _as_it_is


def _skip_if(condition: object, reason: str) -> Callable[[Any], Any]:
    """Tests that are off for an issue of torch's own CI run here."""
    listed = reason.startswith("https://github.com/pytorch/pytorch/issues")
    return unittest.skip(reason) if condition and not listed else _as_it_is


def _not_checked(wrapper: Any, message: str) -> None:
    """What torch's class writes to its log of an error that was raised is its own affair."""


with (
    mock.patch.object(common_distributed, "skip_if_lt_x_gpu", _skip_above),
    mock.patch.object(common_distributed, "skip_if_no_gpu", _as_it_is),
    mock.patch.object(common_distributed, "verify_ddp_error_logged", _not_checked),
    mock.patch.object(unittest, "skipIf", _skip_if),
):
    from torch.testing._internal.distributed import distributed_test

UnevenInput = distributed_test.DDPUnevenTestInput


def _small(model: nn.Module, inp: Any, **fields: Any) -> tuple[Any, ...]:
    """The images of 1000 × 1000 pixels in the test of uneven inputs take a CPU an hour, and the
    layers of 1000 × 1000 weights a hundred times as long as they need to be uneven."""
    if isinstance(model, nn.Linear):
        return UnevenInput(model=nn.Linear(16, 16, bias=False), inp=inp[..., :16], **fields)
    small = inp[..., :16, :16] if isinstance(inp, Tensor) and inp.dim() == 4 else inp
    return UnevenInput(model=model, inp=small, **fields)


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # noqa: SLF001
    """A test of it, called on each rank of a group, is what torch's own runner calls."""


@functools.cache
def prepare(backend: str, *, of_wrapper: bool) -> None:
    """Let the tests of this process take ours for torch's, and the CPU for a GPU.

    Args:
        backend: of the group.
        of_wrapper: whether DistributedDataParallel is tested, with ours in the place of torch's,
            by tests that know gloo and nccl only; otherwise the backend is, whose name tests ask
            for.
    """
    for needed in ("barrier", "test_dir"):  # torch's file barrier and its tests of files
        Path(os.environ["TEMP_DIR"], needed).mkdir(exist_ok=True)
    distributed_test.DDPUnevenTestInput = _small
    # What a compiled wrapper does is decided before C++ is written, which takes half a minute.
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    torchs: type = nn.parallel.DistributedDataParallel
    if of_wrapper:
        for module in list(sys.modules.values()):
            if not getattr(module, "__name__", "").startswith(UNTOUCHED):
                for name, value in list(getattr(module, "__dict__", {}).items()):
                    if value is torchs:
                        setattr(module, name, DistributedDataParallel)
    else:
        distributed_test.BACKEND = backend
    stand_in(DistributedDataParallel if of_wrapper else torchs, dist.get_world_size())


def call(name: str, rank: int) -> None:
    """Run one of torch's tests on this rank of a group that has been started.

    Raises:
        unittest.SkipTest: the test does not run here.
    """
    test = Suite(name)
    test.rank = rank
    test.file_name = str(Path(os.environ["TEMP_DIR"], "store"))
    common_distributed.common_utils.set_rng_seed()
    try:
        getattr(test, name)()
    except SystemExit as end:  # its way to skip
        raise unittest.SkipTest(f"exit code {end.code}") from None
