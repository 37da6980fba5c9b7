"""Ranks that must end are ended, and torch's agent does not wait for those that are gone."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest

from dpbench.launch.agent import PartFailed, run_part
from dpbench.launch.part import Part
from dpbench.launch.rank import pid_path
from dpbench.store.process_identity import ProcessIdentity

LIMIT_SECONDS = 60.0


def sleeps(_: int) -> None:
    time.sleep(LIMIT_SECONDS)


def leaves_quietly(_: int) -> None:
    os._exit(0)


def stop_when(stop: Event, scratch: Path, *, gone: bool) -> None:
    """Sets it as soon as rank 0 runs, or has ended."""
    while not pid_path(scratch, 0).exists():
        time.sleep(0.02)
    process = ProcessIdentity.parse(pid_path(scratch, 0).read_text())
    while gone and psutil.pid_exists(process.pid):
        time.sleep(0.02)
    stop.set()


@pytest.mark.parametrize(
    ("work", "gone", "aborted"), [(sleeps, False, True), (leaves_quietly, True, False)]
)
def test_a_part_that_is_stopped_ends_and_says_which_ranks_were_still_running(
    tmp_path: Path, work: partial[None], gone: bool, aborted: bool
) -> None:
    """A rank that left with status 0 and no result is one that the agent waits for, for ever."""
    stop = Event()
    stopping = Thread(target=stop_when, args=(stop, tmp_path), kwargs={"gone": gone})
    stopping.start()
    with pytest.raises(PartFailed) as failed:
        run_part(work, Part(count=1), tmp_path, LIMIT_SECONDS, stop=stop)
    stopping.join()
    (trace,) = failed.value.traces
    assert (trace.aborted, trace.done, trace.failure) == (aborted, False, None)
