"""A page of memory in which a running sweep says where it is, for whoever wants to look.

The launching process makes it and names the trial; rank 0 names its stage and stores one integer
a step, which is all that a timed window pays. Reading costs the writers nothing. The memory is a
memfd, opened by others as /proc/<pid>/fd/<n>: nothing is left on disk however processes end, and
a page that cannot be opened any more, or has another token, tells that its sweep was killed; so
does a process of the same number that started at another time, or since another start of the host.
"""

from __future__ import annotations

import enum
import mmap
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dpbench.store.process_identity import started_ticks

PAGE_BYTES = 4096
NAME = "dpbench-live"
_LINK = f"/memfd:{NAME}"

# Each slot is an aligned 64-bit integer with one writer: its store is seen whole or not at all.
_TOKEN, _ROUND, _TRIAL, _STARTED, _VISIBLE = range(5)  # of the launching process
_STAGE, _FIRST, _OF, _STEPS = range(8, 12)  # of rank 0, on a cache line of their own


class Stage(enum.IntEnum):
    """Activity of rank 0."""

    STARTING = 0
    WARMUP = 1
    TIMED = 2
    NOISE_SCALE = 3
    WITHOUT_SYNC = 4
    GRADIENT_TIMES = 5
    PHASES = 6
    PHASES_WITHOUT_SYNC = 7
    TRACE = 8
    VERIFYING = 9

    @property
    def words(self) -> str:
        return _WORDS.get(self, self.name.lower())


_WORDS = {
    Stage.TIMED: "timed window",
    Stage.NOISE_SCALE: "noise scale",
    Stage.WITHOUT_SYNC: "without sync",
    Stage.GRADIENT_TIMES: "gradient times",
    Stage.PHASES_WITHOUT_SYNC: "phases without sync",
    Stage.TRACE: "profiler trace",
}
_STAGES = frozenset(Stage)


class NoPage(Exception):
    """The process that had the page is gone."""


class ForeignPage(Exception):
    """The process is there, but its page cannot be read from here: it belongs to somebody else,
    this system shows it to nobody, or another dpbench writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Address of the page for another process."""

    pid: int
    started_ticks: int
    """Start of that process in clock ticks since the host started: pids are used again."""
    boot_id: str
    """Identifier of that start of the host."""
    descriptor: int
    token: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningSweep:
    """Content of live.json: the address of the page, and the trials of the round in progress."""

    host: str
    """Network name of the host; its processes are invisible elsewhere."""
    address: Address | None
    round: int
    configurations: tuple[int, ...]
    """Place of each trial's configuration in the first pass of the plan."""
    repetitions: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Content of the page at one time."""

    round: int
    trial: int | None
    """Place in the round of the trial that runs; None between two."""
    started_seconds: float
    """Start of that trial on the host's monotonic clock, which all its processes share."""
    stage: Stage
    steps_done: int | None
    """Steps of the stage; None where it takes no steps."""
    steps: int | None
    steps_visible: bool
    """False where ranks cannot open the page, so that stage and steps stay as they were."""


class LivePage:
    """The page of this process's sweep."""

    def __init__(self) -> None:
        token = secrets.randbits(62)
        self._descriptor: int | None = None
        if hasattr(os, "memfd_create"):  # Linux
            self._descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC)
            os.ftruncate(self._descriptor, PAGE_BYTES)
        memory = mmap.mmap(-1 if self._descriptor is None else self._descriptor, PAGE_BYTES)
        self._slots = memoryview(memory).cast("q")
        self._slots[_TOKEN] = token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def address(self) -> Address | None:
        """None where processes cannot share memory without a name, or see each other."""
        pid = os.getpid()
        started, boot_id = started_ticks(pid), _boot_id()
        if self._descriptor is None or started is None or boot_id is None:
            return None
        return Address(
            pid=pid,
            started_ticks=started,
            boot_id=boot_id,
            descriptor=self._descriptor,
            token=self._slots[_TOKEN],
        )

    def say_steps_are_visible(self, visible: bool) -> None:
        self._slots[_VISIBLE] = visible

    def begin_round(self, number: int) -> None:
        self._slots[_ROUND] = number

    def begin_trial(self, place: int) -> None:
        """Trial number `place` of the round starts; no rank of another one is left."""
        for slot in (_STAGE, _FIRST, _OF, _STEPS):
            self._slots[slot] = 0
        self._slots[_STARTED] = time.monotonic_ns()
        self._slots[_TRIAL] = place + 1

    def end_trial(self) -> None:
        self._slots[_TRIAL] = 0

    def read(self) -> Moment:
        return _moment(self._slots)


def read(address: Address) -> Moment:
    """The page of another process; raises NoPage or ForeignPage."""
    return _moment(_open(address, write=False))


class StepCounter:
    """Reports a rank's steps to the page, if there is one."""

    def __init__(self, address: Address | None = None) -> None:
        self._slots = memoryview(bytearray(PAGE_BYTES)).cast("q")
        if address is not None:
            try:
                self._slots = _open(address, write=True)
            except (NoPage, ForeignPage):
                return  # the launching process knows, see `can_open`

    @property
    def total(self) -> memoryview[int]:
        """A single number that is set after every step: how many there were so far."""
        return self._slots[_STEPS : _STEPS + 1]

    def enter(self, stage: Stage, steps: int = 0, *, done: int = 0) -> None:
        """A stage of so many steps begins, of which some are `done`. Not for timed windows."""
        self._slots[_OF] = 0  # until all is consistent, no steps are shown
        self._slots[_STAGE] = stage
        self._slots[_FIRST] = self._slots[_STEPS] - done
        self._slots[_OF] = steps


def can_open(address: Address | None) -> bool:
    """Tells whether this process could write into the page."""
    if address is None:
        return False
    try:
        _open(address, write=True)
    except (NoPage, ForeignPage):
        return False
    return True


def _open(address: Address, *, write: bool) -> memoryview[int]:
    _check_process(address)
    path = Path(f"/proc/{address.pid}/fd/{address.descriptor}")
    try:
        if not str(path.readlink()).startswith(_LINK):  # the number may be another's by now
            raise NoPage
        descriptor = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
    except PermissionError:
        raise ForeignPage from None
    except OSError:
        raise NoPage from None
    try:
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        slots = memoryview(mmap.mmap(descriptor, PAGE_BYTES, access=access)).cast("q")
    except (OSError, ValueError):
        raise NoPage from None
    finally:
        os.close(descriptor)
    if slots[_TOKEN] != address.token:
        raise NoPage
    return slots


def _check_process(address: Address) -> None:
    """Raises NoPage if the process has ended, whatever has its number now."""
    if address.boot_id != _boot_id():
        raise NoPage
    started = started_ticks(address.pid)
    if started is None and _is_foreign(address.pid):
        raise ForeignPage
    if started != address.started_ticks:
        raise NoPage


def _boot_id() -> str | None:
    """Another text after every start of the host; None where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _is_foreign(pid: int) -> bool:
    """Tells whether there is such a process of another user: /proc may hide it."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _moment(slots: memoryview[int]) -> Moment:
    """Raises ForeignPage if a stage has a number that is not known here."""
    trial = slots[_TRIAL]
    entered = slots[_STAGE], slots[_FIRST], slots[_OF]
    stage, first, of = entered
    done = slots[_STEPS] - first
    settled = entered == (slots[_STAGE], slots[_FIRST], slots[_OF])
    counted = settled and 0 <= done <= of and of > 0  # else rank 0 is just entering a stage
    if stage not in _STAGES:
        raise ForeignPage
    return Moment(
        round=slots[_ROUND],
        trial=trial - 1 if trial else None,
        started_seconds=slots[_STARTED] / 1e9,
        stage=Stage(stage),
        steps_done=done if counted else None,
        steps=of if counted else None,
        steps_visible=bool(slots[_VISIBLE]),
    )
