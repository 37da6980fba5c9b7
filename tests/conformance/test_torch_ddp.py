"""torch's own tests pass: of collectives on shm, and of its wrapper with ours in its place."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.parallel.ranks import World

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

CHOSEN = tomllib.loads(Path(__file__).with_name("tests.toml").read_text())
IS_PINNED = (
    f"torch=={torch.__version__.partition('+')[0]}\n"
    in (Path(__file__).parents[2] / "constraints.txt").read_text()
)


def passes(backend: str, kind: str, name: str, rank: int) -> None:
    """Run one of torch's tests on this rank."""
    from tests.conformance import suite

    warnings.simplefilter("ignore")
    suite.prepare(backend, of_wrapper=kind == "wrappers")
    if hasattr(suite.Suite, name) or IS_PINNED:  # other versions of torch lack some
        suite.call(name, rank)


def on_ranks(backend: str, kind: str) -> Callable[..., None]:
    world = World(backend=backend, sizes=(CHOSEN[kind]["ranks"],))
    for name in CHOSEN[kind]["names"]:
        world.add(name, partial(passes, backend, kind, name))
    return world.test()


test_our_wrapper_passes_on_gloo = on_ranks("gloo", "wrappers")
test_our_wrapper_passes_on_shm = on_ranks("shm", "wrappers")
test_shm_passes = on_ranks("shm", "collectives")
