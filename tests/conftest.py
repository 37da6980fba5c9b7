"""What every test gets: a small heap to collect, and one server that all ranks are forked from."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

from dpbench.launch import server

# What the modules import whose functions ranks run. The first test that starts a process starts
# the server of all, which would not import it otherwise: every rank would, for 0.2 s.
server.PRELOADED += ["psutil", "pytest"]

# A busy machine is no defect of what is tested; tests/benchmarks measures speed.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="module", autouse=True)
def _collections_are_short() -> None:
    """A measured window starts with a collection, which takes 0.2 s to walk what torch imports."""
    gc.collect()
    gc.freeze()
