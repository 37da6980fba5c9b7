"""What else the host may do: a second sweep, a clock set back, a full /dev/shm."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from dpbench import store
from dpbench.analysis.summary import summarize
from dpbench.records.trial import Status
from dpbench.run.sweep.grid import plan_trials, run_trials
from dpbench.training.run_folder import RunFolder, RunStatus
from tests.builders import sweep_spec
from tests.cli.command import environment, start
from tests.faults.scenario import CannotTry, Scenario, Try, expect
from tests.launch.synthetic import SyntheticLauncher

SLOW = (
    *("sweep", "--arch", "tests.launch.faulty:TakesLong", "--implementations", "ddp", "--quiet"),
    *("--batch-sizes", "4", "--steps", "5", "--repetitions", "1", "--gpus", "2", "--oversubscribe"),
)
TRIALS = 3


def two_sweeps(tries: int) -> Iterator[Try]:
    """The same folder is refused to the second; another name beside it is not."""
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            first = start(*SLOW, "--name", "one", cwd=folder)
            _wait_for(folder / "results/one" / store.TRIALS_FILE)
            again = start(*SLOW, "--name", "one", cwd=folder)
            resumed = start(*SLOW, "--name", "one", "--resume", cwd=folder)
            beside = start(*SLOW, "--name", "two", cwd=folder)
            (_, error), (_, in_use), *_ = [
                process.communicate(timeout=120) for process in (again, resumed, beside, first)
            ]
            counts = [len(store.load(folder / f"results/{n}").records) for n in ("one", "two")]
            yield Try(
                expect(
                    again_refused=again.returncode == 2 and "exists already" in error,
                    resume_refused=resumed.returncode == 2 and "is in use" in in_use,
                    another_name_works=beside.returncode == 0,
                    first_undisturbed=first.returncode == 0,
                    all_stored=counts == [TRIALS, TRIALS],
                )
            )


def two_trainings(tries: int) -> Iterator[Try]:
    """One goes on in the folder of another, at another moment of it every time."""
    train = ("train", "--arch", "tests.launch.faulty:TakesLong", "--gpus", "1", "--threads", "1")
    run = ("--limit-train", "800", "--batch-size", "4", "--epochs", "1", "--name", "t")
    for number in range(tries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            first = start(*train, *run, cwd=folder)
            _wait_for(folder / "runs/t/run.json")
            time.sleep(number)
            second = start(*train[:3], "--resume", "t", cwd=folder)
            (_, refused), (_, printed) = [
                process.communicate(timeout=240) for process in (second, first)
            ]
            header = RunFolder.open(folder / "runs/t").header
            yield Try(
                expect(
                    **{f"refused: {refused[-200:]}": "runs/t is in use: " in refused},
                    second_exits_with_2=second.returncode == 2,
                    **{f"the first completes: {printed[-200:]}": first.returncode == 0},
                    run_json_is_the_first_ones=(len(header.starts), header.status)
                    == (1, RunStatus.COMPLETED),
                )
            )


def clock_set_back(tries: int) -> Iterator[Try]:
    """The wall clock jumps back in mid-sweep: durations, order and table do not care."""
    spec = sweep_spec(repetitions=3)

    class Jumping(datetime):
        calls = 0

        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            Jumping.calls += 1
            back = timedelta(days=Jumping.calls) if Jumping.calls > jump_at else timedelta()
            return datetime(2026, 1, 1, tzinfo=UTC) - back

    steady = list(
        run_trials(plan_trials(spec), SyntheticLauncher(), environment_id="e", time_limit_seconds=1)
    )
    for number in range(tries):
        jump_at, Jumping.calls = number, 0
        with mock.patch("dpbench.launch.launcher.datetime", Jumping):
            jumped = list(
                run_trials(
                    plan_trials(spec), SyntheticLauncher(), environment_id="e", time_limit_seconds=1
                )
            )
        yield Try(
            expect(
                it_jumped=jumped[0].started_utc > jumped[-1].started_utc,
                no_negative_duration=all(record.duration_seconds >= 0 for record in jumped),
                same_table=summarize(jumped) == summarize(steady),
            )
        )


def full_shared_memory(tries: int) -> Iterator[Try]:
    """Not a page is left for the semaphores that processes are started with: said in one line."""
    for _ in range(tries):
        done = _with_shared_memory("4k")
        named = done.returncode == 1 and "/dev/shm is full" in done.stderr.splitlines()[-1]
        yield Try(expect(**{f"named: {done.stderr[-300:]}": named}))


def nearly_full_shared_memory(tries: int) -> Iterator[Try]:
    """Less is left than any gradient needs."""
    for _ in range(tries):
        done = _with_shared_memory("260k")
        yield Try(expect(**{f"every row completes: {done.stdout[-900:]}": done.returncode == 0}))


def without_loopback(tries: int) -> Iterator[Try]:
    """In a network namespace whose lo is down nothing can be reached, not even the host itself."""
    sweep = (*SLOW, "--implementations", "ddp,dp", "--backends", "gloo,shm", "--name", "s")
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                ["unshare", "--net", sys.executable, "-m", "dpbench", *sweep],
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            if "unshare: " in done.stderr:
                raise CannotTry(f"a network namespace needs root: {done.stderr.strip()}")
            records = store.load(Path(folder) / "results/s").records
            by_status = {record.status for record in records if record.trial.backend != "threads"}
            skipped = [record for record in records if record.status is Status.SKIPPED]
            reasons = {(record.reason or "")[:22] for record in skipped}
            yield Try(
                expect(
                    **{f"exits with 0: {done.stderr[-300:]}": done.returncode == 0},
                    **{f"none fails: {by_status}": Status.FAILED not in by_status},
                    **{f"says why: {reasons}": reasons == {"ranks talk over 127.0."}},
                    some_are_measured=len(skipped) < len(records),
                )
            )


def _with_shared_memory(size: str) -> subprocess.CompletedProcess[str]:
    """A sweep in a mount namespace with so large a /dev/shm, of which 4 KiB are taken."""
    sweep = (*SLOW, "--implementations", "ddp,dp", "--backends", "gloo,shm", "--name", "s")
    command = shlex.join([sys.executable, "-m", "dpbench", *sweep])
    fill = f"mount -t tmpfs -o size={size} none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    with tempfile.TemporaryDirectory() as folder:
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
    return done


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_bytes():
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.02)


SCENARIOS = (
    Scenario(
        name="a network without loopback",
        promise="gloo and shm are skipped with the reason, the others complete",
        tries=2,
        run=without_loopback,
    ),
    Scenario(
        name="two sweeps in one folder",
        promise="the second is refused in one line, the first is not disturbed",
        tries=3,
        run=two_sweeps,
    ),
    Scenario(
        name="two trainings in one folder",
        promise="the second is refused in one line, the first is not disturbed",
        tries=5,
        run=two_trainings,
    ),
    Scenario(
        name="the clock set back",
        promise="no negative duration, the same table",
        tries=20,
        run=clock_set_back,
    ),
    Scenario(
        name="a full /dev/shm",
        promise="exit status 1, one line that names it",
        tries=2,
        run=full_shared_memory,
    ),
    Scenario(
        name="a nearly full /dev/shm",
        promise="gloo, shm and threads complete",
        tries=2,
        run=nearly_full_shared_memory,
    ),
)
