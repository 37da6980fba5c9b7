"""torch's distributed tests as they ship in its wheel, called one by one on a rank.

Import this only where torch's tests may run: their module reads BACKEND from the environment when
it is imported, and WORLD_SIZE in each test.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal import common_distributed


def _as_it_is(test: Any) -> Any:
    return test


def _skip_above(count: int, **_: Any) -> Callable[[Any], Any]:
    """In place of the decorator that wants `count` GPUs: one per rank stands in (one_device)."""

    def judged(test: Any) -> Any:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> Any:
            if count > dist.get_world_size():
                raise unittest.SkipTest(f"needs {count} ranks")
            return test(*args, **kwargs)

        return run

    return judged


def _skip_if(condition: object, reason: str) -> Callable[[Any], Any]:
    """Tests that are off for an issue of torch's own CI run here: the control run judges them."""
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


distributed_test.DDPUnevenTestInput = _small


class _Barrier(distributed_test.Barrier):
    """It looks for the other ranks every few milliseconds; torch's sleeps for 0.1 s between looks,
    which most tests of collectives would spend nearly all of their time in."""

    @classmethod
    def sync(cls, wait_for: int | None = None, timeout: float = 10) -> None:
        cls.barrier_id += 1
        folder = Path(os.environ["TEMP_DIR"], "barrier")
        (folder / f"{cls.barrier_id}-{os.getpid()}").touch()
        deadline = time.monotonic() + timeout
        while len([*folder.glob(f"{cls.barrier_id}-*")]) < (wait_for or dist.get_world_size()):
            if time.monotonic() > deadline:
                raise RuntimeError("barrier timeout")
            time.sleep(0.005)


distributed_test.Barrier = _Barrier
# What a compiled wrapper does is settled before C++ is written, which takes half a minute.
torch.compile = functools.partial(torch.compile, backend="aot_eager")

SKIP_CODES = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
GROUP_TIMEOUTS = distributed_test.CUSTOM_PG_TIMEOUT


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # noqa: SLF001
    """A test of it, called on each rank of a group, is what torch's own runner calls."""


def use_backend(backend: str, *, has_collectives: bool) -> None:
    """Let the tests of this process take a backend for gloo, and expect of it what gloo does.

    Which tests there are for gloo was settled when torch's module was imported.

    Args:
        backend: gloo or shm.
        has_collectives: whether the tests are those of collectives, which ask for its name; those
            of wrappers know gloo and nccl only.
    """
    importlib.import_module("dpbench.parallel")  # which registers shm
    if has_collectives:
        distributed_test.BACKEND = backend


def call(name: str, rank: int, store: str) -> str | None:
    """Run one test on this rank of a group that has been started.

    Returns:
        Why the test skipped, or None if it passed.
    """
    test = Suite(name)
    test.rank = rank
    test.file_name = store
    common_distributed.common_utils.set_rng_seed()
    try:
        getattr(test, name)()
    except unittest.SkipTest as skip:
        return str(skip)
    except SystemExit as end:
        if end.code not in SKIP_CODES:
            raise
        return SKIP_CODES[end.code]
    return None
