"""A window takes exactly its steps, times all of them, and lets nothing else in."""

from __future__ import annotations

import gc
import math
import mmap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from dpbench.measure import window
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.window import Timing, Usage, joined, time_steps, usage

CPU = torch.device("cpu")
ALONE = RankGroup(size=1, control=None)


def no_step(number: int) -> None:
    pass


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """The phases ("start", "stop") of every garbage collection from here on."""
    phases: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)

    gc.callbacks.append(note)
    yield phases
    gc.callbacks.remove(note)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 5), (7, 3)])
def test_every_step_is_called_once_with_its_number(first: int, count: int) -> None:
    calls: list[int] = []
    timing = time_steps(calls.append, range(first, first + count), CPU, ALONE)
    assert calls == list(range(first, first + count))
    assert len(timing.step_seconds) == count


def test_a_window_is_read_off_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 11.5, 13.5])
    monkeypatch.setattr(window, "perf_counter", lambda: next(clock))
    timing = time_steps(no_step, range(3), CPU, ALONE)
    assert timing == Timing(10.0, 3.5, (0.5, 1.0, 2.0), timing.usage)
    assert list(clock) == []  # the clock is read at the ends of steps and nowhere else


def test_steps_are_contiguous() -> None:
    timing = time_steps(lambda number: time.sleep(0.001), range(20), CPU, ALONE)
    assert all(seconds >= 0.001 for seconds in timing.step_seconds)
    assert math.isclose(sum(timing.step_seconds), timing.seconds, rel_tol=1e-9)


def test_a_window_starts_at_the_step_and_ends_with_the_last() -> None:
    before = time.perf_counter()
    timing = time_steps(no_step, range(3), CPU, ALONE)
    after = time.perf_counter()
    assert before <= timing.start_seconds <= timing.start_seconds + timing.seconds <= after


def test_segments_are_joined_without_what_lay_between_them() -> None:
    first, second = Usage(1.0, 5), Usage(2.0, 7)
    segments = [Timing(10.0, 3.0, (1.0, 2.0), first), Timing(20.0, 4.0, (4.0,), second)]
    assert joined(segments) == Timing(10.0, 7.0, (1.0, 2.0, 4.0), Usage(3.0, 12))


def test_garbage_is_collected_before_the_window_and_not_in_it(collections: list[str]) -> None:
    before_steps: list[list[str]] = []
    enabled: list[bool] = []

    def step(number: int) -> None:
        before_steps.append(list(collections))
        enabled.append(gc.isenabled())
        assert [[number] for _ in range(10 * gc.get_threshold()[0])]  # would set off several

    time_steps(step, range(3), CPU, ALONE)
    assert before_steps == [["start", "stop"]] * 3
    assert enabled == [False] * 3
    assert gc.isenabled()


def test_garbage_collection_is_back_on_after_a_step_that_raises() -> None:
    def step(number: int) -> None:
        raise ValueError("broken step")

    with pytest.raises(ValueError, match="broken step"):
        time_steps(step, range(3), CPU, ALONE)
    assert gc.isenabled()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    time_steps(no_step, range(3), CPU, ALONE)
    assert capfd.readouterr() == ("", "")


@dataclass(slots=True)
class Threads:
    """Stands in for a RankGroup whose ranks are threads; notes when a rank was at a barrier."""

    meeting: threading.Barrier
    passed: list[float] = field(default_factory=list)

    def barrier(self) -> None:
        self.meeting.wait(timeout=20)
        self.passed.append(time.perf_counter())


@pytest.mark.alone
def test_a_slow_rank_shows_in_its_own_window_only() -> None:
    meeting = threading.Barrier(2)
    groups = [Threads(meeting), Threads(meeting)]
    timings: dict[int, Timing] = {}

    def run(rank: int) -> None:
        def step(number: int) -> None:
            time.sleep(0.02 if rank == 1 else 0.0)

        timings[rank] = time_steps(step, range(5), CPU, groups[rank])  # type: ignore[arg-type]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert timings[1].seconds >= 5 * 0.02
    assert timings[0].seconds < timings[1].seconds / 2
    for rank, group in enumerate(groups):
        opened, closed = group.passed
        assert opened <= timings[rank].start_seconds
        slowest_end = timings[1].start_seconds + timings[1].seconds
        assert closed >= slowest_end  # no rank goes on while another is still being timed


PAGES = 500


def test_each_page_that_is_touched_for_the_first_time_is_a_page_fault() -> None:
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
        if hasattr(memory, "madvise"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        before = usage()
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1
        taken = usage() - before
    assert PAGES <= taken.page_faults < 2 * PAGES


def test_processor_time_is_that_of_all_work() -> None:
    before = usage()
    while (usage() - before).cpu_seconds < 0.02:
        sum(range(10_000))
    assert (usage() - before).cpu_seconds >= 0.02
