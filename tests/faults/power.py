"""The power goes: what the disk holds at that moment must be whole, and nothing stored be lost.

The sweep runs on a file system in a file. The file is copied while the sweep is stopped, and the
copy mounted, as after a restart of the host: what was never flushed is not in it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpbench import store
from dpbench.errors import StoreError
from tests.cli.command import dpbench, start
from tests.faults.scenario import CannotTry, Scenario, Try, expect

SYNTHETIC = (
    *("sweep", "--quiet", "--gpus", "2", "--oversubscribe", "--name", "s"),
    "--no-charts",
)
TRIALS = 45
MEGABYTES = 16


def crash_images(tries: int) -> Iterator[Try]:
    """At another record every time, the first of them before there is any."""
    chance = random.Random(7)
    for number in range(tries):
        wanted = 0 if number < tries // 5 else chance.randrange(1, TRIALS - 5)
        with tempfile.TemporaryDirectory() as name:
            yield _crash(Path(name), wanted)


def _crash(folder: Path, wanted: int) -> Try:
    image, crashed = folder / "disk", folder / "crashed"
    with image.open("wb") as file:
        file.truncate(MEGABYTES * 2**20)
    _run("mkfs.ext4", "-q", "-F", str(image))
    with mounted(image) as disk:
        running = start(*SYNTHETIC, cwd=disk)
        seen = _stopped_after(running.pid, disk / "results/s", wanted)
        shutil.copyfile(image, crashed)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    with mounted(crashed) as disk:
        sweep = disk / "results/s"
        begun = (sweep / store.SWEEP_FILE).exists()
        problem, records = _loaded(sweep) if begun else (None, 0)
        # The last line may have been written, and not yet promised to be on disk.
        kept = records >= seen - 1 and (begun or seen == 0)
        environments = list(sweep.glob("environments/*.json"))
        empty = [path.name for path in environments if not path.stat().st_size]
        finished = dpbench(*SYNTHETIC, *(["--resume"] if begun else []), cwd=disk, timeout=240)
        return Try(
            expect(
                **{f"can be read: {problem}": problem is None},
                **{f"of {seen} records {records} are kept": kept},
                **{f"no environment is empty: {empty}": not empty},
                **{f"is finished: {finished.stderr[-200:]}": finished.returncode == 0},
            )
        )


def _stopped_after(pid: int, sweep: Path, records: int) -> int:
    """Stops the sweep when it has stored so many records; how many there are then."""
    deadline = time.monotonic() + 120
    trials, first = sweep / store.TRIALS_FILE, sweep if not records else sweep / store.TRIALS_FILE
    while not first.exists() or _lines(trials) < records:
        assert time.monotonic() < deadline, "the sweep did not begin"
        time.sleep(0.0005)
    os.killpg(pid, signal.SIGSTOP)
    time.sleep(0.05)  # what the disk is doing is done
    return _lines(trials)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _loaded(sweep: Path) -> tuple[str | None, int]:
    try:
        stored = store.load(sweep)
    except StoreError as error:
        return str(error), 0
    return None, len(stored.records)


@contextmanager
def mounted(image: Path) -> Iterator[Path]:
    """Raises CannotTry without the right to mount."""
    folder = image.with_name(f"{image.name}-mounted")
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-o", "loop", str(image), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotTry(f"mounting needs root and a loop device: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        _run("umount", str(folder))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        raise CannotTry(f"{command[0]} is not installed") from None


SCENARIOS = (
    Scenario(
        name="power lost in the middle of a sweep",
        promise="the image of the disk has every stored record, and --resume finishes",
        tries=20,
        run=crash_images,
    ),
)
