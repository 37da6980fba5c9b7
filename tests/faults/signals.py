"""Signals at random moments, and as under nohup, which ignores them."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice, product
from pathlib import Path

import psutil

from dpbench import store
from dpbench.errors import StoreError
from tests.cli.command import environment
from tests.faults.parent import GONE_SECONDS, LONGEST_SECONDS, SWEEP, TRIALS, runs
from tests.faults.scenario import Scenario, Try, expect

NUMBERS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
END_SECONDS = 240.0


def at_random(tries: int) -> Iterator[Try]:
    """To all processes of the terminal, as the kernel does, or to the command alone."""
    chance = random.Random(3)
    kinds = product(NUMBERS, (False, True), (True, False))
    for number, ignored, to_all in islice(cycle(kinds), tries):
        with tempfile.TemporaryDirectory() as name:
            folder, delay = Path(name), chance.uniform(0.3, LONGEST_SECONDS)
            yield _try(folder, number, delay, ignored=ignored, to_all=to_all)


def _try(folder: Path, number: int, delay: float, *, ignored: bool, to_all: bool) -> Try:
    (folder / "tmp").mkdir()
    sweep = shlex.join([sys.executable, "-m", "dpbench", *SWEEP])
    ignore = f"trap '' {signal.Signals(number).name.removeprefix('SIG')}; " if ignored else ""
    running = subprocess.Popen(
        ["sh", "-c", f"{ignore}exec {sweep}"],
        cwd=folder,
        env={**environment(), "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(delay)
    family = psutil.Process(running.pid).children(recursive=True)
    began = time.monotonic()
    (os.killpg if to_all else os.kill)(running.pid, number)
    _, printed = running.communicate(timeout=END_SECONDS)
    seconds = None if ignored else time.monotonic() - began
    left = [process for process in psutil.wait_procs(family, GONE_SECONDS)[1] if runs(process)]
    kept = [path.name for path in (folder / "tmp").glob("dpbench-*")]
    # Before Python is up a signal does what it does to every program.
    expected = (0,) if ignored else (128 + number, -number)
    records = _records(folder / "results/cut")
    return Try(
        expect(
            **{f"ends with {expected}, not {running.returncode}": running.returncode in expected},
            **{f"no traceback: {printed[-300:]}": "Traceback" not in printed},
            **{f"no process is left: {left}": not left},
            **{f"no folder is left: {kept}": not kept or running.returncode == -number},
            **{f"all {TRIALS} are stored, not {records}": records == TRIALS or not ignored},
        ),
        seconds,
    )


def _records(folder: Path) -> int | None:
    try:
        return len(store.load(folder).records)
    except StoreError:
        return None


SCENARIOS = (
    Scenario(
        name="SIGHUP, SIGINT and SIGTERM at random moments",
        promise="ignored ones change nothing, others end it with 128 + n, nothing is left",
        tries=20,
        run=at_random,
    ),
)
