"""Kill, stop, starve and interrupt sweeps, as often as each fault says, and count what held.

`python -m tools.faults [WORD ...] [--tries N]` runs all faults, or those with a word in their name.
"""

from __future__ import annotations

import argparse
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from pathlib import Path

import psutil

from dpbench import store
from dpbench.errors import StoreError
from dpbench.launch import rank as ranks
from dpbench.launch.machine import Machine
from dpbench.launch.trials import HostLauncher
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec
from tests.builders import WORKLOAD, trial_spec
from tests.cli.command import dpbench, environment, start
from tests.launch import synthetic

PROMPT_SECONDS, GONE_SECONDS = 2.0, 2.0
TRIAL_SECONDS = 1.2
"""About what a trial with many steps takes; faults fall anywhere into it."""
REAL = (
    *("sweep", "--arch", "tests.launch.faulty:TakesLong", "--implementations", "ddp"),
    *("--batch-sizes", "4", "--steps", "2", "--warmup", "0", "--repetitions", "2", "--gpus", "2"),
    *("--oversubscribe", "--name", "s", "--quiet", "--no-charts"),
)
REAL_TRIALS = 6
COMPUTED = (
    *("sweep", "--quiet", "--gpus", "2", "--oversubscribe", "--name", "s", "--no-charts"),
    *("--implementations", "ddp", "--batch-sizes", "4,8,16,32", "--repetitions", "5"),
)
"""A sweep of the launchers of tests/launch/synthetic.py: many records in no time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One kind of fault; `run(tries)` yields the problem of each try, None where all held."""

    name: str
    promise: str
    tries: int
    run: Callable[[int], Iterator[str | None]]


class CannotTry(Exception):
    """This machine has no way to try it; the text says why."""


def expect(**checks: bool) -> str | None:
    """The names of the checks that failed, as a problem; None if all hold."""
    failed = [name.replace("_", " ") for name, holds in checks.items() if not holds]
    return f"not so: {', '.join(failed)}" if failed else None


def faulty(kind: str, number: int, **changes: object) -> TrialSpec:
    """A trial of an architecture of tests.launch.faulty, on each side in turn."""
    sides = (("ddp", "gloo"), ("ddp", "shm"), ("torch-ddp", "gloo"))
    implementation, backend = sides[number % len(sides)]
    workload = replace(WORKLOAD, architecture=f"tests.launch.faulty:{kind}", dataset="synthetic")
    return trial_spec(workload=workload, implementation=implementation, backend=backend, **changes)


@contextmanager
def launcher() -> Iterator[tuple[HostLauncher, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(cores=2, gpus=(), cuda=None, missing_backends=())
        logs = Path(folder) / "logs"
        yield HostLauncher(machine, prepared=None, logs=logs), logs


def writer(output: Path) -> int | None:
    """The process below this one whose standard output is that file."""
    for child in psutil.Process().children(recursive=True):
        pid: int = child.pid
        with suppress(OSError):
            if Path(f"/proc/{pid}/fd/1").readlink() == output:
                return pid
    return None


def rank_killed(tries: int) -> Iterator[str | None]:
    """Kills that come when the rank has its result are not counted: there is nothing to name."""
    chance, hits, number = random.Random(0), 0, 0
    with launcher() as (starts, logs):
        while hits < tries:
            number += 1
            victim, killed_at, over = chance.randrange(2), list[float](), threading.Event()

            def kill(
                victim: int, delay: float, killed_at: list[float], over: threading.Event
            ) -> None:
                over.wait(delay)
                while not over.is_set() and not killed_at:
                    for path in logs.glob("*"):
                        output = ranks.output_path(path, victim, "stdout")
                        if pid := writer(output):
                            os.kill(pid, signal.SIGKILL)
                            killed_at.append(time.monotonic())
                    time.sleep(0.005)

            arguments = (victim, chance.uniform(0, TRIAL_SECONDS), killed_at, over)
            killer = threading.Thread(target=kill, args=arguments)
            killer.start()
            outcome = starts.run(faulty("Healthy", number, timed_steps=600), 60.0)
            ended = time.monotonic()
            over.set()
            killer.join()
            if killed_at and outcome.status is not Status.COMPLETED:
                hits += 1
                named = f"rank {victim} was killed by SIGKILL"
                yield expect(
                    failed=outcome.status is Status.FAILED,
                    **{f"named ({outcome.reason})": (outcome.reason or "").startswith(named)},
                    prompt=ended - killed_at[0] < PROMPT_SECONDS,
                )


def stored(folder: Path) -> list[str] | None:
    """The ids of the stored trials; None if the sweep had not begun to write."""
    try:
        records = store.load(folder / "results/s").records
    except StoreError:
        return None
    return [record.trial.trial_id for record in records]


def runs(process: psutil.Process) -> bool:
    """A zombie does not: its parent is on its way out and has not read it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def parent_killed(tries: int) -> Iterator[str | None]:
    chance = random.Random(1)
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            running = start(*REAL, cwd=folder)
            time.sleep(chance.uniform(0.5, 8.0))
            children = psutil.Process(running.pid).children(recursive=True)
            of_ranks = [child for child in children if child.ppid() != running.pid]
            running.kill()
            killed_at = time.monotonic()
            while any(map(runs, of_ranks)) and time.monotonic() - killed_at < 30:
                time.sleep(0.01)
            seconds = time.monotonic() - killed_at
            _, alive = psutil.wait_procs(children, timeout=30)
            running.communicate(timeout=20)
            before = stored(folder)
            finished = dpbench(*REAL, *(["--resume"] if before is not None else []), cwd=folder)
            after = stored(folder) or []
            yield expect(
                no_process_left=not alive,
                ranks_gone_in_time=seconds < GONE_SECONDS,
                **{f"resume exits 0: {finished.stderr[-300:]}": finished.returncode == 0},
                nothing_lost=after[: len(before or [])] == (before or []),
                every_trial_once=len(after) == len({*after}) == REAL_TRIALS,
            )


def signals(tries: int) -> Iterator[str | None]:
    """To all processes of the terminal, as the kernel does, or to the command alone."""
    chance = random.Random(3)
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
    kinds = product(numbers, (False, True), (True, False))
    for number, ignored, to_all in islice(cycle(kinds), tries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ignore = f"trap '' {number.name.removeprefix('SIG')}; " if ignored else ""
            command = shlex.join([sys.executable, "-m", "dpbench", *REAL])
            running = subprocess.Popen(
                ["sh", "-c", f"{ignore}exec {command}"],
                cwd=folder,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            time.sleep(chance.uniform(0.3, 8.0))
            family = psutil.Process(running.pid).children(recursive=True)
            (os.killpg if to_all else os.kill)(running.pid, number)
            _, printed = running.communicate(timeout=240)
            left = [one for one in psutil.wait_procs(family, GONE_SECONDS)[1] if runs(one)]
            # Before Python is up a signal does what it does to every program.
            expected = (0,) if ignored else (128 + number, -number)
            yield expect(
                **{
                    f"ends with {expected}, not {running.returncode}": running.returncode
                    in expected
                },
                **{f"no traceback: {printed[-300:]}": "Traceback" not in printed},
                **{f"no process is left: {left}": not left},
                all_are_stored=not ignored or len(stored(folder) or []) == REAL_TRIALS,
            )


def training_interrupted(tries: int) -> Iterator[str | None]:
    """Ctrl-C while the server of ranks and the ranks start: for seconds, on a busy machine."""
    chance = random.Random(4)
    train = ("train", "--arch", "mlp", "--gpus", "2", "--oversubscribe", "--epochs", "50")
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for number in range(tries):
            with tempfile.TemporaryDirectory() as name:
                mark = f"{os.getpid()}-{number}"
                running = start(*train, cwd=Path(name), TMPDIR=name, DPBENCH_FAULT=mark)
                deadline = time.monotonic() + 60
                while not [*Path(name).glob("runs/*")] and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0.0, 10.0))
                os.killpg(running.pid, signal.SIGINT)
                _, printed = running.communicate(timeout=60)
                time.sleep(GONE_SECONDS)
                left = []
                for process in psutil.process_iter():
                    with suppress(psutil.Error):  # it may have ended, or be another user's
                        if process.environ().get("DPBENCH_FAULT") == mark:
                            left.append(process)
                yield expect(
                    **{f"ends with 130, not {running.returncode}": running.returncode == 130},
                    **{f"no traceback: {printed[-300:]}": "Traceback" not in printed},
                    **{f"no process is left: {left}": not left},
                    no_temporary_folder_is_left=not [*Path(name).glob("[dp]*-*")],
                )
    finally:
        for loop in loops:
            loop.kill()


def computed(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    with synthetic.in_use():
        return dpbench(*COMPUTED, *words, cwd=cwd)


def disk_full(tries: int) -> Iterator[str | None]:
    """The disk fills up somewhere in the records, at another byte every time."""
    for number in range(tries):
        with mounted("-t", "tmpfs", "-o", f"size={40 + 16 * number}k", "none") as disk:
            stopped = computed(cwd=disk)
            path = disk / "results/s" / store.TRIALS_FILE
            whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            finished = computed(*(["--resume"] if path.exists() else []), cwd=disk)
            ids = stored(disk) or []
            yield expect(
                **{f"it stopped: {stopped.stderr[-200:]}": stopped.returncode in (1, 2)},
                no_traceback="Traceback" not in stopped.stderr,
                **{f"resume exits 0: {finished.stderr[-200:]}": finished.returncode == 0},
                nothing_lost=path.read_bytes().startswith(whole),
                every_trial_once=len(ids) == len({*ids}),
            )


def power_lost(tries: int) -> Iterator[str | None]:
    """The image of the disk is copied while the sweep is stopped: what was not flushed is lost."""
    chance = random.Random(7)
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as name:
            image, crashed = Path(name) / "disk", Path(name) / "crashed"
            with image.open("wb") as file:
                file.truncate(16 * 2**20)
            if shutil.which("mkfs.ext4") is None:
                raise CannotTry("mkfs.ext4 is not installed")
            subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
            wanted = chance.randrange(1, 20)
            with mounted("-o", "loop", str(image)) as disk:
                running = start(*COMPUTED, cwd=disk, **synthetic.VARIABLES)
                path = disk / "results/s" / store.TRIALS_FILE
                deadline = time.monotonic() + 120
                while not path.exists() or path.read_bytes().count(b"\n") < wanted:
                    assert time.monotonic() < deadline, "the sweep did not begin"
                    time.sleep(0.0005)
                os.killpg(running.pid, signal.SIGSTOP)
                time.sleep(0.05)  # what the disk is doing is done
                seen = path.read_bytes().count(b"\n")
                shutil.copyfile(image, crashed)
                os.killpg(running.pid, signal.SIGKILL)
                running.communicate()
            with mounted("-o", "loop", str(crashed)) as disk:
                kept = len(stored(disk) or [])
                finished = computed("--resume", cwd=disk)
                yield expect(
                    # The last line may have been written, and not yet promised to be on disk.
                    **{f"of {seen} records {kept} are kept": kept >= seen - 1},
                    **{f"is finished: {finished.stderr[-200:]}": finished.returncode == 0},
                )


@contextmanager
def mounted(*arguments: str) -> Iterator[Path]:
    """A file system at a new folder; raises CannotTry without the right to mount."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", *arguments, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotTry(f"mounting needs root: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def shared_memory_full(tries: int) -> Iterator[str | None]:
    """Not a page is left there; nothing that starts ranks may need one."""
    fill = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            command = shlex.join([sys.executable, "-m", "dpbench", *REAL])
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", f"{fill} && exec {command}"],
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        if "unshare: " in done.stderr or "mount: " in done.stderr:
            raise CannotTry(f"a mount namespace needs root: {done.stderr.strip()}")
        yield expect(**{f"completed: {done.stderr[-300:]}": done.returncode == 0})


def in_a_row(tries: int) -> Iterator[str | None]:
    """Nothing of what the launching process holds may grow with the number of trials."""

    def held() -> tuple[int, int, int]:
        gc.collect()
        this = psutil.Process()
        return this.num_fds(), this.num_threads(), len(this.children(recursive=True))

    def memory() -> int:
        this = psutil.Process()
        return sum(one.memory_info().rss for one in (this, *this.children()))

    with launcher() as (starts, _):
        for number in range(30):  # until caches and pools have the size that they keep
            starts.run(faulty("Healthy", number), 60.0)
        before, bytes_before = held(), memory()
        for number in range(tries):
            outcome = starts.run(faulty("Healthy", number), 60.0)
            deadline = time.monotonic() + 1.0
            while (now := held()) > before and time.monotonic() < deadline:
                time.sleep(0.01)  # threads that are just ending
            grown = memory() - bytes_before
            yield expect(
                completed=outcome.status is Status.COMPLETED,
                **{f"held {now}, before {before}": all(map(int.__le__, now, before))},
                **{f"memory grew by {grown} bytes": grown <= 8 * 2**20},
            )


FAULTS = (
    Fault(
        name="a rank killed at a random moment",
        promise="failed, that rank and SIGKILL named, within 2 s",
        tries=50,
        run=rank_killed,
    ),
    Fault(
        name="the parent killed at a random moment",
        promise="ranks gone within 2 s, nothing lost, --resume finishes and repeats nothing",
        tries=10,
        run=parent_killed,
    ),
    Fault(
        name="SIGHUP, SIGINT, SIGTERM and SIGQUIT at random moments",
        promise="ignored ones change nothing, others end it with 128 + n, nothing is left",
        tries=20,
        run=signals,
    ),
    Fault(
        name="Ctrl-C while a training starts on a busy machine",
        promise="ends with 130, no process and no temporary file is left",
        tries=10,
        run=training_interrupted,
    ),
    Fault(name="the disk full", promise="whole records kept, resumable", tries=5, run=disk_full),
    Fault(
        name="power lost in the middle of a sweep",
        promise="the image of the disk has every stored record, and --resume finishes",
        tries=20,
        run=power_lost,
    ),
    Fault(
        name="a full /dev/shm",
        promise="the sweep completes",
        tries=2,
        run=shared_memory_full,
    ),
    Fault(
        name="trials in a row",
        promise="no growth of memory, descriptors, threads, processes",
        tries=300,
        run=in_a_row,
    ),
)


def main(arguments: Sequence[str], faults: Sequence[Fault] = FAULTS) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults with one of these in their name")
    parser.add_argument("--tries", type=int, help="at most so many tries of each")
    options = parser.parse_args(arguments)
    chosen = [f for f in faults if not options.words or any(w in f.name for w in options.words)]
    if not chosen:
        parser.error(f"no fault has {' or '.join(options.words)} in its name")
    broken = 0
    for fault in chosen:
        began = time.monotonic()
        try:
            problems = [*fault.run(min(fault.tries, options.tries or fault.tries))]
        except CannotTry as reason:
            print(f"{fault.name}: not tried here: {reason}", flush=True)
            continue
        held, took = problems.count(None), time.monotonic() - began
        print(f"{fault.name}: {held} of {len(problems)} held ({fault.promise}); {took:.0f} s")
        for problem, count in Counter(filter(None, problems)).most_common(3):
            print(f"  {count} × {problem}", flush=True)
        broken += held < len(problems)
    return 1 if broken else 0


if __name__ == "__main__":
    # What is tried here inherits these, and a shell's `&` or nohup has set them to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
