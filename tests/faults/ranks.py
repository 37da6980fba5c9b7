"""Faults of one rank of a real trial: the outcome must name that rank, its end, and come soon."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

from dpbench.launch import rank as ranks
from dpbench.launch.agent import ElasticLauncher
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.machine import Machine
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec
from dpbench.store.process_identity import ProcessIdentity
from tests.builders import WORKLOAD, trial_spec
from tests.faults.scenario import Scenario, Try, expect

SIDES = (("ddp", "gloo"), ("ddp", "shm"), ("torch-ddp", "gloo"))
PROMPT_SECONDS = 2.0
LIMIT_SECONDS = 4.0
TRIAL_SECONDS = 1.2
"""About what the trial with many steps takes; faults fall anywhere into it."""


def faulty(kind: str, number: int, **changes: object) -> TrialSpec:
    """A trial of an architecture of tests.launch.faulty, on the sides in turn."""
    implementation, backend = SIDES[number % len(SIDES)]
    workload = replace(WORKLOAD, architecture=f"tests.launch.faulty:{kind}", dataset="synthetic")
    return trial_spec(workload=workload, implementation=implementation, backend=backend, **changes)


@contextmanager
def launcher() -> Iterator[tuple[ElasticLauncher, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(cores=2, gpus=(), cuda=None, missing_backends=())
        logs = Path(folder) / "logs"
        yield ElasticLauncher(machine, prepared=None, logs=logs), logs


def killed(tries: int) -> Iterator[Try]:
    """Kills that come when the rank has its result are not counted: there is nothing to name."""
    chance = random.Random(0)
    with launcher() as (start, logs):
        hits = number = 0
        while hits < tries:
            number += 1
            killer = Killer(
                logs, victim=chance.randrange(2), delay=chance.uniform(0, TRIAL_SECONDS)
            )
            outcome = killer.during(start, faulty("Healthy", number, timed_steps=600))
            if not killer.hit:
                if outcome.status is not Status.COMPLETED:
                    yield Try(f"nobody was killed, yet {outcome.status.words}: {outcome.reason}")
                continue
            hits += 1
            named = f"rank {killer.victim} was killed by SIGKILL"
            yield Try(
                expect(
                    failed=outcome.status is Status.FAILED,
                    **{f"named ({outcome.reason})": (outcome.reason or "").startswith(named)},
                    prompt=killer.seconds_to_outcome < PROMPT_SECONDS,
                ),
                killer.seconds_to_outcome,
            )


class Killer:
    """Kills one rank with SIGKILL at its moment of a trial."""

    def __init__(self, logs: Path, *, victim: int, delay: float) -> None:
        self.victim = victim
        self.hit = False
        self.seconds_to_outcome = 0.0
        self._logs = logs
        self._delay = delay
        self._killed_at = 0.0
        self._over = threading.Event()

    def during(self, start: ElasticLauncher, trial: TrialSpec) -> TrialOutcome:
        thread = threading.Thread(target=self._kill)
        thread.start()
        outcome = start.run(trial, 60.0)
        self.seconds_to_outcome = monotonic() - self._killed_at
        self._over.set()
        thread.join()
        return outcome

    def _kill(self) -> None:
        if self._over.wait(self._delay):
            return
        while not self._over.is_set():
            for path in self._logs.glob("*"):
                with suppress(OSError, ValueError):
                    text = ranks.pid_path(path, self.victim).read_text()
                    pid = ProcessIdentity.parse(text).pid
                    os.kill(pid, signal.SIGSTOP)  # so that it cannot finish in between
                    self.hit = not ranks.done_path(path, self.victim).exists()
                    self._killed_at = monotonic()
                    os.kill(pid, signal.SIGKILL if self.hit else signal.SIGCONT)
                    return
            sleep(0.005)


def ending(kind: str, status: Status, reason: str) -> Scenario:
    def run(tries: int) -> Iterator[Try]:
        with launcher() as (start, _):
            start.run(faulty("Healthy", 0), 60.0)
            for number in range(tries):
                began = monotonic()
                outcome = start.run(faulty(kind, number), LIMIT_SECONDS)
                seconds = monotonic() - began
                hung = status is Status.TIMED_OUT
                yield Try(
                    expect(
                        **{f"status {outcome.status.words}": outcome.status is status},
                        **{f"reason {outcome.reason}": reason in (outcome.reason or "")},
                        prompt=seconds < PROMPT_SECONDS + (LIMIT_SECONDS + 1 if hung else 1),
                    ),
                    seconds,
                )

    words = {"Stops": "stopped (SIGSTOP)", "LeavesQuietly": "exits 0 early"}
    name = words.get(kind, "".join(f" {c.lower()}" if c.isupper() else c for c in kind).strip())
    return Scenario(name=f"a rank {name}", promise=f"{status.words}: {reason}", tries=6, run=run)


SCENARIOS = (
    Scenario(
        name="a rank killed at a random moment",
        promise="failed, that rank and SIGKILL named, within 2 s",
        tries=50,
        run=killed,
    ),
    ending("Stops", Status.TIMED_OUT, "rank 1 did not respond"),
    ending("Raises", Status.FAILED, "rank 1 raised ValueError: the loss function is broken"),
    ending("LeavesQuietly", Status.FAILED, "rank 1 ended without a result"),
    ending("Exits", Status.FAILED, "rank 1 exited with status 7"),
    ending("Hangs", Status.TIMED_OUT, "rank 1 was in misbehave"),
    ending("RunsOutOfMemory", Status.OUT_OF_MEMORY, "rank 1 ran out of memory"),
    ending("MeetsItsMemoryLimit", Status.OUT_OF_MEMORY, "rank 1 ran out of memory"),
    ending("Diverges", Status.DIVERGED, "the loss is not finite at timed step 1"),
)
