"""`make faults`: kills, stops, starves and interrupts sweeps, each many times at random moments.

`make full` runs the first try of those that need no quiet machine.
"""

from __future__ import annotations

import gc
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dpbench import folders
from dpbench.errors import FileError
from dpbench.launch.rank_process import output_path
from dpbench.launch.trial_runner import TrialRunner
from dpbench.records.trial import Status
from dpbench.specs import Configuration
from tests.builders import MACHINE, WORKLOAD, configuration
from tests.cli.command import dpbench, environment, start
from tests.launch import synthetic
from tests.waiting import is_alive

PROMPT_SECONDS, GONE_SECONDS = 2.0, 2.0
TRIAL_SECONDS = 1.2
"""About what a trial with many steps takes; faults fall anywhere into it."""
REAL = (
    *("sweep", "--arch", "tests.launch.faulty:TakesLong", "--implementations", "ddp"),
    *("--batch-sizes", "4", "--steps", "2", "--warmup", "0", "--repetitions", "2", "--gpus", "2"),
    *("--oversubscribe", "--name", "s", "--quiet", "--no-charts"),
)
REAL_TRIALS = 4
TRAINING = ("train", "--arch", "mlp", "--gpus", "2", "--oversubscribe", "--epochs", "50")
COMPUTED = (
    *("sweep", "--quiet", "--gpus", "2", "--oversubscribe", "--name", "s", "--no-charts"),
    *("--implementations", "ddp", "--batch-sizes", "4,8,16,32", "--repetitions", "5"),
)
"""A sweep of the launchers of tests/launch/synthetic.py: many records in no time."""
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


FULL = pytest.param(0, marks=pytest.mark.full)


def tries(count: int, *first: object) -> pytest.MarkDecorator:
    """Run a test with each number below `count`, from which it draws its moment."""
    return pytest.mark.parametrize("number", [*first, *range(len(first), count)])


def faulty(kind: str, number: int, **changes: object) -> Configuration:
    """An architecture of tests.launch.faulty, on each side in turn."""
    sides = (("ddp", "gloo"), ("ddp", "shm"), ("torch-ddp", "gloo"))
    implementation, backend = sides[number % len(sides)]
    workload = replace(WORKLOAD, architecture=f"tests.launch.faulty:{kind}", dataset="synthetic")
    settings = {"workload": workload, "implementation": implementation, "backend": backend}
    return configuration(**settings, **changes)


def runner(logs: Path) -> TrialRunner:
    return TrialRunner(MACHINE, logs)


@tries(50, FULL)
def test_a_rank_that_is_killed_is_named_within_two_seconds(number: int, tmp_path: Path) -> None:
    chance = random.Random(number)
    # A kill that comes when the rank has its result already leaves nothing to name.
    while True:
        victim, killed_at, over = chance.randrange(2), list[float](), threading.Event()
        arguments = (tmp_path, victim, chance.uniform(0, TRIAL_SECONDS), killed_at, over)
        killer = threading.Thread(target=_kill_one, args=arguments)
        killer.start()
        outcome = runner(tmp_path).run(faulty("Healthy", number, steps=600), 0, 60.0)
        ended = time.monotonic()
        over.set()
        killer.join()
        if killed_at and outcome.status is not Status.COMPLETED:
            break
    assert outcome.status is Status.FAILED
    named = f"rank {victim} was killed by SIGKILL"
    assert (outcome.reason or "").startswith(named), outcome.reason
    assert ended - killed_at[0] < PROMPT_SECONDS


def _kill_one(
    logs: Path, victim: int, delay: float, killed_at: list[float], over: threading.Event
) -> None:
    """Kill the process that writes the output of a rank; `killed_at` gets the time."""
    over.wait(delay)
    while not over.is_set() and not killed_at:
        outputs = {output_path(path, victim, "stdout") for path in logs.glob("*")}
        for child in psutil.Process().children(recursive=True):
            with suppress(OSError):
                if Path(f"/proc/{child.pid}/fd/1").readlink() in outputs:
                    os.kill(child.pid, signal.SIGKILL)
                    killed_at.append(time.monotonic())
        time.sleep(0.005)


@tries(10)
def test_a_killed_sweep_takes_its_ranks_along_and_is_finished_with_resume(
    number: int, tmp_path: Path
) -> None:
    running = start(*REAL, cwd=tmp_path)
    time.sleep(random.Random(number).uniform(0.5, 8.0))
    children = psutil.Process(running.pid).children(recursive=True)
    of_ranks = [child for child in children if child.ppid() != running.pid]
    running.kill()
    gone = time.monotonic() + GONE_SECONDS
    while left := [child for child in of_ranks if is_alive(child.pid)]:
        assert time.monotonic() < gone, left
        time.sleep(0.01)
    assert not psutil.wait_procs(children, timeout=30)[1]
    running.communicate(timeout=20)
    before = stored(tmp_path)
    finished = dpbench(*REAL, *(["--resume"] if before is not None else []), cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr[-300:]
    after = stored(tmp_path) or []
    assert after[: len(before or [])] == (before or [])
    assert len(after) == len({*after}) == REAL_TRIALS


def stored(folder: Path) -> list[str] | None:
    """The ids of the stored trials; None if the sweep had not begun to write."""
    try:
        records = folders.load_sweep(folder / "results/s").records
    except FileError:
        return None
    return [record.trial_id for record in records]


@tries(32)
def test_a_signal_ends_a_sweep_or_a_training_unless_it_is_ignored(number: int) -> None:
    kind = SIGNALS[number % len(SIGNALS)]
    ignored, to_all, trains = bool(number & 4), not number & 8, number & 20 == 16
    with tempfile.TemporaryDirectory() as name:
        ignore = f"trap '' {kind.name.removeprefix('SIG')}; " if ignored else ""
        command = shlex.join([sys.executable, "-m", "dpbench", *(TRAINING if trains else REAL)])
        running = subprocess.Popen(
            ["sh", "-c", f"{ignore}exec {command}"],
            cwd=name,
            env=environment() | {"TMPDIR": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(random.Random(number).uniform(0.3, 8.0))
        family = psutil.Process(running.pid).children(recursive=True)
        # To all processes of the terminal, as the kernel does, or to the command alone.
        (os.killpg if to_all else os.kill)(running.pid, kind)
        _, printed = running.communicate(timeout=240)
        left = [one for one in psutil.wait_procs(family, GONE_SECONDS)[1] if is_alive(one.pid)]
        # Before Python is up a signal does what it does to every program.
        expected = (0,) if ignored else (128 + kind, -kind)
        assert running.returncode in expected, f"{kind.name}: {running.returncode}"
        assert "Traceback" not in printed, printed[-300:]
        assert not left
        assert not [*Path(name).glob("[dp]*-*")], "a temporary folder is left"
        assert not ignored or len(stored(Path(name)) or []) == REAL_TRIALS


def computed(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    with synthetic.in_use():
        return dpbench(*COMPUTED, *words, cwd=cwd)


@tries(5, FULL)
def test_whole_records_are_kept_wherever_the_disk_fills_up(number: int) -> None:
    with mounted("-t", "tmpfs", "-o", f"size={40 + 16 * number}k", "none") as disk:
        stopped = computed(cwd=disk)
        path = disk / "results/s" / folders.TRIALS_FILE
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        finished = computed(*(["--resume"] if path.exists() else []), cwd=disk)
        assert stopped.returncode in (1, 2), stopped.stderr[-200:]
        assert "Traceback" not in stopped.stderr
        assert finished.returncode == 0, finished.stderr[-200:]
        assert path.read_bytes().startswith(whole)
        ids = stored(disk) or []
        assert len(ids) == len({*ids})


@tries(20, FULL)
def test_the_disk_has_every_stored_record_when_the_power_is_lost(number: int) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    with tempfile.TemporaryDirectory() as name:
        image, crashed = Path(name) / "disk", Path(name) / "crashed"
        with image.open("wb") as file:
            file.truncate(16 * 2**20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        with mounted("-o", "loop", str(image)) as disk:
            running = start(*COMPUTED, cwd=disk, **synthetic.VARIABLES)
            path = disk / "results/s" / folders.TRIALS_FILE
            deadline, wanted = time.monotonic() + 120, random.Random(number).randrange(1, 20)
            while not path.exists() or path.read_bytes().count(b"\n") < wanted:
                assert time.monotonic() < deadline, "the sweep did not begin"
                time.sleep(0.0005)
            os.killpg(running.pid, signal.SIGSTOP)
            time.sleep(0.05)  # what the disk is doing is done
            seen = path.read_bytes().count(b"\n")
            shutil.copyfile(image, crashed)  # without what was not flushed
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
        with mounted("-o", "loop", str(crashed)) as disk:
            # The last line may have been written, and not yet promised to be on disk.
            assert len(stored(disk) or []) >= seen - 1
            finished = computed("--resume", cwd=disk)
            assert finished.returncode == 0, finished.stderr[-200:]


@contextmanager
def mounted(*arguments: str) -> Iterator[Path]:
    """A file system at a new folder; skips without the right to mount."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", *arguments, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting needs root: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.full
def test_a_sweep_completes_without_a_free_page_of_shared_memory(tmp_path: Path) -> None:
    fill = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    command = shlex.join([sys.executable, "-m", "dpbench", *REAL])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{fill} && exec {command}"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare: " in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"a mount namespace needs root: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr[-300:]


@pytest.mark.timeout(600)
def test_three_hundred_trials_in_a_row_gain_no_memory_descriptors_or_processes(
    tmp_path: Path,
) -> None:
    def held() -> tuple[int, int, int]:
        gc.collect()
        this = psutil.Process()
        return this.num_fds(), this.num_threads(), len(this.children(recursive=True))

    def memory() -> int:
        this = psutil.Process()
        return sum(one.memory_info().rss for one in (this, *this.children()))

    starts = runner(tmp_path)
    for number in range(30):  # until caches and pools have the size that they keep
        starts.run(faulty("Healthy", number), 0, 60.0)
    before, bytes_before = held(), memory()
    for number in range(300):
        outcome = starts.run(faulty("Healthy", number), 0, 60.0)
        assert outcome.status is Status.COMPLETED, outcome.reason
    deadline = time.monotonic() + 1.0
    while (now := held()) > before and time.monotonic() < deadline:
        time.sleep(0.01)  # threads that are just ending
    assert all(map(int.__le__, now, before)), f"holds {now}, before {before}"
    assert memory() - bytes_before <= 8 * 2**20
