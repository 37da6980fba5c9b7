"""The launching process is killed: ranks die with it, what was measured stays, resume finishes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import psutil

from dpbench import store
from dpbench.errors import StoreError
from tests.cli.command import dpbench, start
from tests.faults.scenario import Scenario, Try, expect

SWEEP = (
    *("sweep", "--arch", "tests.launch.faulty:TakesLong", "--implementations", "ddp"),
    *("--batch-sizes", "4", "--steps", "2", "--warmup", "0"),
    *("--repetitions", "2", "--gpus", "2", "--oversubscribe", "--name", "cut", "--quiet"),
    "--no-charts",
)
TRIALS = 6
LONGEST_SECONDS = 8.0
GONE_SECONDS = 2.0


def killed(tries: int) -> Iterator[Try]:
    chance = random.Random(1)
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            yield _kill_once(Path(folder), chance.uniform(0.5, LONGEST_SECONDS))


def _kill_once(folder: Path, delay: float) -> Try:
    running = start(*SWEEP, cwd=folder)
    sleep(delay)
    children = psutil.Process(running.pid).children(recursive=True)
    ranks = [child for child in children if child.ppid() != running.pid]
    running.kill()
    killed_at = monotonic()
    while any(map(runs, ranks)) and monotonic() - killed_at < 30:
        sleep(0.01)
    seconds = monotonic() - killed_at
    _, alive = psutil.wait_procs(children, timeout=30)  # the fork server may still be importing
    running.communicate(timeout=20)
    before = _stored(folder)
    finished = dpbench(*SWEEP, *(["--resume"] if before is not None else []), cwd=folder)
    after = _stored(folder) or []
    return Try(
        expect(
            no_process_left=not alive,
            ranks_gone_in_time=seconds < GONE_SECONDS,
            **{f"resume exits 0: {finished.stderr[-300:]}": finished.returncode == 0},
            nothing_lost=after[: len(before or [])] == (before or []),
            every_trial_once=len(after) == len(set(after)) == TRIALS,
        ),
        seconds,
    )


def runs(process: psutil.Process) -> bool:
    """A zombie does not: its parent, the fork server, is on its way out and has not read it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stored(folder: Path) -> list[str] | None:
    """The ids in the folder; None if the sweep had not begun to write."""
    try:
        records = store.load(folder / "results/cut").records
    except StoreError:
        return None
    return [record.trial.trial_id for record in records]


SCENARIOS = (
    Scenario(
        name="the parent killed at a random moment",
        promise="ranks gone within 2 s, nothing lost, --resume finishes and repeats nothing",
        tries=10,
        run=killed,
    ),
)
