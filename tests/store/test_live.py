"""The page of memory that a running sweep keeps: what one process writes, another one reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import SupportsIndex

import pytest

from dpbench.store import live
from dpbench.store.live import Address, ForeignPage, LivePage, NoPage, Stage, StepCounter, can_open


def address_of(page: LivePage) -> Address:
    assert page.address is not None
    return page.address


def test_a_reader_sees_which_trial_runs_and_since_when() -> None:
    with LivePage() as page:
        page.begin_round(2)
        assert live.read(address_of(page)).trial is None
        before = time.monotonic()
        page.begin_trial(0)
        moment = live.read(address_of(page))
        assert (moment.round, moment.trial, moment.stage) == (2, 0, Stage.STARTING)
        assert before <= moment.started_seconds <= time.monotonic()
        page.end_trial()
        assert page.read().trial is None


def test_steps_are_those_of_the_stage() -> None:
    with LivePage() as page:
        counter = StepCounter(address_of(page))
        counter.enter(Stage.WARMUP, 10)
        counter.total[0] = 10
        counter.enter(Stage.TIMED, 50)
        for step in range(11, 14):
            counter.total[0] = step
        moment = page.read()
        assert (moment.stage, moment.steps_done, moment.steps) == (Stage.TIMED, 3, 50)


def test_a_window_that_grows_goes_on_counting() -> None:
    with LivePage() as page:
        counter = StepCounter(address_of(page))
        counter.enter(Stage.TIMED, 20)
        counter.total[0] = 20
        counter.enter(Stage.TIMED, 30, done=20)
        counter.total[0] = 25
        assert (page.read().steps_done, page.read().steps) == (25, 30)


def test_a_stage_without_steps_shows_none_and_a_new_trial_starts_anew() -> None:
    with LivePage() as page:
        counter = StepCounter(address_of(page))
        counter.enter(Stage.TIMED, 5)
        counter.total[0] = 5
        counter.enter(Stage.VERIFYING)
        assert (page.read().stage, page.read().steps_done) == (Stage.VERIFYING, None)
        page.begin_trial(1)
        assert (page.read().stage, page.read().steps) == (Stage.STARTING, None)


def test_whoever_cannot_open_the_page_counts_for_itself() -> None:
    with LivePage() as page:
        gone = replace(address_of(page), token=1)
    for address in (gone, None):
        assert not can_open(address)
        counter = StepCounter(address)
        counter.enter(Stage.TIMED, 3)
        counter.total[0] = 1
        assert counter.total[0] == 1


def test_a_page_that_was_closed_is_gone() -> None:
    with LivePage() as page:
        address = address_of(page)
        assert can_open(address)
    assert page.address is None
    with pytest.raises(NoPage):
        live.read(address)


def test_the_page_of_another_sweep_is_not_taken_for_it() -> None:
    with LivePage() as page, pytest.raises(NoPage):
        live.read(replace(address_of(page), token=7))


def test_another_file_under_its_number_is_not_opened(tmp_path: Path) -> None:
    """Opening a pipe would wait for its writer."""
    os.mkfifo(tmp_path / "pipe")
    descriptor = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NoPage), LivePage() as page:
        live.read(replace(address_of(page), descriptor=descriptor))
    os.close(descriptor)


def test_a_number_that_another_process_has_by_now_is_not_taken_for_it() -> None:
    """After a kill, or after the host was started again; whoever owns the other process."""
    with LivePage() as page:
        address = address_of(page)
        for later in (
            replace(address, started_ticks=address.started_ticks + 1),
            replace(address, boot_id="another start of this host"),
        ):
            with pytest.raises(NoPage):
                live.read(later)
    with pytest.raises(NoPage):
        live.read(replace(address, pid=1))


class Changing(list[int]):
    """Slots that another process writes while they are read: something happens at one read."""

    def __init__(self, slots: list[int], at: int, happens: Callable[[list[int]], None]) -> None:
        super().__init__(slots)
        self._at, self._happens = at, happens

    def __getitem__(self, slot: SupportsIndex) -> int:  # type: ignore[override]
        value = super().__getitem__(slot)
        if int(slot) == self._at:
            self._happens(self)
        return value


def read_while(at: int, happens: Callable[[list[int]], None]) -> live.Moment:
    slots = [0] * 16
    slots[live._TRIAL] = 3
    slots[live._STAGE], slots[live._OF], slots[live._STEPS] = Stage.WARMUP, 10, 10
    return live._moment(Changing(slots, at, happens))  # type: ignore[arg-type]


def test_a_trial_that_ends_while_it_is_read_is_no_other_trial() -> None:
    def end(slots: list[int]) -> None:
        slots[live._TRIAL] = 0

    assert read_while(live._TRIAL, end).trial == 2


def test_steps_of_one_stage_are_not_shown_as_those_of_the_next() -> None:
    def enter(slots: list[int]) -> None:
        slots[live._STAGE], slots[live._FIRST], slots[live._OF] = Stage.TIMED, 10, 50

    assert read_while(live._OF, enter).steps is None
    assert read_while(live._ROUND, lambda _: None).steps == 10


def test_a_stage_of_a_newer_dpbench_is_not_read() -> None:
    with LivePage() as page:
        StepCounter(address_of(page))._slots[live._STAGE] = 99
        with pytest.raises(ForeignPage):
            live.read(address_of(page))


def test_a_process_of_somebody_else_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    with LivePage() as page:
        address = address_of(page)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "readlink", refuse)
            with pytest.raises(ForeignPage):
                live.read(address)
            assert not can_open(address)
        monkeypatch.setattr(os, "kill", refuse)  # as where /proc hides it
        with pytest.raises(ForeignPage):
            live.read(replace(address, pid=2**22 + 1))


def test_a_killed_process_leaves_no_page() -> None:
    code = (
        "from dpbench.store.live import LivePage; page = LivePage(); a = page.address;"
        "print(a.pid, a.started_ticks, a.boot_id, a.descriptor, a.token, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, started, boot_id, descriptor, token = process.stdout.readline().split()
        address = Address(
            pid=int(pid),
            started_ticks=int(started),
            boot_id=boot_id,
            descriptor=int(descriptor),
            token=int(token),
        )
        assert live.read(address).trial is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(NoPage):
            live.read(address)


def test_without_memory_files_a_page_is_of_its_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with LivePage() as page:
        page.begin_trial(4)
        assert (page.address, page.read().trial) == (None, 4)
