"""`dpbench check` of the user's own change: two versions of the code, measured in turn.

A repetition runs `dpbench sweep` once for either version, in its own working directory and with its
own interpreter; which of them goes first alternates. What disturbs the machine disturbs both, and
the runs are compared repetition by repetition.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, time
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from dpbench import architecture, store, units
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK
from dpbench.analysis.throughput import is_measured, throughput
from dpbench.architecture import is_theirs
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.report.progress.bar import Bar
from dpbench.run.gate.judging import (
    MOST_LOOKS,
    SECONDS_BETWEEN_LINES,
    Gate,
    MeasuredFolder,
    Sides,
    conclude,
    parse_sweep,
    plan_sweep,
)
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.grid import plan_trials
from dpbench.run.sweep.measuring import Measurement, estimate_seconds, launcher_for
from dpbench.specs import SweepSpec
from dpbench.store import SweepStore

NOW = "the working directory"
GROWTH = 1.5
"""How many times as many repetitions the next look has."""
MEASURED = (0, 1, 6)
"""Exit statuses of a sweep that stored its trials, whether or not all of them completed."""
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that would show another interpreter the packages of this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Other:
    """The version that the candidate is compared with: one of the three is given."""

    ref: str | None = None
    arch: str | None = None
    python: str | None = None

    @property
    def label(self) -> str:
        return str(self.ref or self.arch or self.python)


@dataclass(kw_only=True)
class _Version:
    """One version: how it is started, and what it has measured so far."""

    label: str
    words: Sequence[str]
    directory: Path
    environ: Mapping[str, str]
    python: str = sys.executable
    records: list[TrialRecord] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)

    def run(self, number: int, scratch: Path) -> tuple[SweepSpec, list[TrialRecord]]:
        """Measure one repetition; raises UsageError, in the sweep's words, if it cannot begin."""
        results = scratch / f"{len(list(scratch.iterdir()))}"
        place = ("--results-dir", str(results), "--name", "pass", "--quiet", "--no-charts")
        finished = subprocess.run(
            [self.python, "-m", "dpbench", "sweep", *self.words, "--repetitions", "1", *place],
            cwd=self.directory,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if finished.returncode not in MEASURED or not (results / "pass").is_dir():
            said = finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"]
            raise UsageError(f"{self.label}: {said[-1].removeprefix('dpbench: ')}")
        stored = store.load(results / "pass")
        found = [
            replace(record, trial=replace(record.trial, repetition=number))
            for record in stored.records
        ]
        self.records += found
        self.environments |= stored.environments
        return stored.spec, found


def check_beside(gate: Gate, other: Other, axes: Mapping[str, Any], target: MeasuredFolder) -> int:
    """Measure the code as it stands and the other version in turn, and judge them."""
    options, spec, machine = plan_sweep(parse_sweep(axes), target, gate.thresholds.tolerances)
    if other.ref is not None:
        _require_own_file(spec)
    gate.outputs.check()
    if other.python is not None:  # another torch is another environment, which is the question
        gate = replace(gate, force=True)
    folder = target.folder()
    with as_exceptions(), _versions(other, options, target) as (then, now):
        _announce(gate, spec, machine, target, folder)
        sides = _measure(gate, other, then, now, folder, target)
    say(f"records are in {folder} and {_baseline_folder(folder)}")
    return conclude(gate, sides, sides[0][1].records, alpha=ALPHA_OF_A_LOOK)


@contextmanager
def _versions(
    other: Other, options: SweepOptions, target: MeasuredFolder
) -> Iterator[tuple[_Version, _Version]]:
    """The baseline and the candidate."""
    words = options.words()
    if target.data_dir is not None:
        words += ["--data-dir", str(target.data_dir.resolve())]
    now = _Version(label=NOW, words=words, directory=Path.cwd(), environ=dict(os.environ))
    with ExitStack() as stack:
        then = replace(now, label=other.label, records=[], environments={})
        if other.ref is not None:
            then.directory, paths = stack.enter_context(_worktree(other.ref))
            paths += filter(None, [os.environ.get("PYTHONPATH")])
            then.environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        elif other.arch is not None:
            shape = options.input_shape
            name = other.arch
            if shape is not None and is_theirs(name):
                name = architecture.with_input_shape(name, shape)
            architecture.check(name)
            then.words = options.model_copy(update={"arch": (other.arch,)}).words()
        elif other.python is not None:
            then.python = interpreter_of(other.python)
            kept = {k: v for k, v in os.environ.items() if k not in PYTHON_VARIABLES}
            then.environ = kept
        yield then, now


def _measure(
    gate: Gate,
    other: Other,
    then: _Version,
    now: _Version,
    folder: Path,
    target: MeasuredFolder,
) -> Sides:
    """Repetitions of both versions until the verdict is clear or the budget is spent."""
    started, done = monotonic(), 0
    kept: list[SweepStore] = []
    with (
        TemporaryDirectory(prefix="dpbench-") as scratch,
        ExitStack() as stack,
        _Progress(quiet=target.quiet) as progress,
    ):
        for _ in range(MOST_LOOKS):
            wanted = math.ceil(GROWTH * done) or gate.thresholds.repetitions
            spent = monotonic() - started
            if done and (takes := (wanted - done) * spent / done) > (
                gate.thresholds.budget_seconds - spent
            ):
                say(
                    f"the budget of {units.seconds(gate.thresholds.budget_seconds)} leaves no time "
                    f"for {units.counted(wanted - done, 'repetition')} more, which would take "
                    f"{units.seconds(takes)}"
                )
                break
            progress.planned(done, wanted)
            for number in range(done, wanted):
                found = {}
                for version in (then, now) if number % 2 == 0 else (now, then):
                    progress.started(version.label)
                    found[id(version)] = version.run(number, Path(scratch))
                if not kept:
                    for place, version in ((folder, now), (_baseline_folder(folder), then)):
                        created = SweepStore.create(place, found[id(version)][0], sys.argv[1:])
                        kept.append(stack.enter_context(created))
                for version, stored in zip((now, then), kept, strict=True):
                    for environment in version.environments.values():
                        stored.add_environment(environment)
                    for record in found[id(version)][1]:
                        stored.append(record)
                before, after = (_speeds(found[id(one)][1]) for one in (then, now))
                progress.finished(f"{before} before, {after} now")
            done = wanted
            sides = _sides(other, then, now, folder)
            if not gate.assess(sides, alpha=ALPHA_OF_A_LOOK).unsettled():
                break
    return _sides(other, then, now, folder)


def _announce(
    gate: Gate, spec: SweepSpec, machine: Machine, target: MeasuredFolder, folder: Path
) -> None:
    """Says how much is measured at least, and about how long that takes.

    Each repetition starts a process for either version, which takes as long as this one took until
    it had started a rank.
    """
    spec = replace(spec, repetitions=gate.thresholds.repetitions)
    job = Measurement(
        spec=spec,
        folder=folder,
        command=(),
        data_dir=target.data_dir,
        embedded=True,  # the worktree is removed after a signal
    )
    with (
        TemporaryDirectory(prefix="dpbench-") as logs,
        launcher_for(job, machine, Path(logs)) as it,
    ):
        trials = [one for one in plan_trials(spec) if it.unusable_reason(one) is None]
        seconds = estimate_seconds(trials, it)
    start = time() - psutil.Process().create_time()
    if not isinstance(seconds, str):
        seconds = 2 * (seconds + spec.repetitions * start)
    say(gate.thresholds.describe_plan(2 * len(trials), seconds))


class _Progress(Bar):
    """The repetition that is running and the time left: one line of a terminal, or lines that are
    `SECONDS_BETWEEN_LINES` apart."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(
            None if quiet else Console(stderr=True, highlight=False),
            BarColumn(),
            MofNCompleteColumn(),
            "repetitions{task.fields[rest]}",
            TextColumn("{task.description}", style="cyan"),
            pause=SECONDS_BETWEEN_LINES,
            rest="",
        )
        self._started = monotonic()
        self._done = self._total = 0

    def planned(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self.update(completed=done, total=total)

    def started(self, label: str) -> None:
        self.update(description=label.replace("[", r"\["))

    def finished(self, speeds: str) -> None:
        self._done += 1
        left = (self._total - self._done) * (monotonic() - self._started) / self._done
        rest = f", {units.seconds(left)} left" if left else ""
        self.update(completed=self._done, rest=rest)
        self.log(f"[{self._done}/{self._total}] {speeds}{rest}")


def _sides(other: Other, then: _Version, now: _Version, folder: Path) -> Sides:
    """Both as sides of one sweep, so that they are compared by repetition."""

    def side(version: _Version) -> Side:
        names = {record.trial.workload.architecture for record in version.records}
        return Side(
            label=version.label,
            records=tuple(version.records),
            environments=version.environments,
            where={"architecture": names.pop()} if other.arch is not None else {},
            source=str(folder),
        )

    return [(side(then), side(now))]


def _baseline_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-baseline")


def _speeds(records: Sequence[TrialRecord]) -> str:
    """The speed of each row: "1,234 and 2,345 images/s"."""
    speeds = [f"{round(throughput(r)):,}" if is_measured(r) else r.status.words for r in records]
    return f"{' and '.join(speeds)} {records[0].item}/s" if records else "nothing"


@contextmanager
def _worktree(revision: str) -> Iterator[tuple[Path, list[str]]]:
    """A git worktree of a revision: this process's working directory in it, and the folders where
    it finds packages that are installed from the repository.

    No hook of the repository runs. Raises UsageError, with git's own words, where there is none.
    """
    root = Path(_git(revision, "rev-parse", "--show-toplevel"))
    commit = _git(revision, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    say(f"--against-ref {revision} is commit {commit[:12]}")
    here = Path.cwd().resolve()
    if not _git(revision, "diff", commit, "--", str(root)):
        say(f"{revision} and {NOW} have the same files: nothing has changed")
    with TemporaryDirectory(prefix="dpbench-") as scratch:
        tree = Path(scratch).resolve() / "then"
        _git(revision, "worktree", "add", "--detach", str(tree), commit)
        try:
            folder = tree / here.relative_to(root.resolve())
            if not folder.is_dir():
                raise UsageError(f"--against-ref {revision}: that revision has no folder {here}")
            inside = [Path(p).resolve() for p in sys.path if p]
            mapped = [tree / p.relative_to(root) for p in inside if p.is_relative_to(root)]
            yield folder, [str(path) for path in (folder, *mapped, tree / "src")]
        finally:
            _git(revision, "worktree", "remove", "--force", str(tree))


def _git(revision: str, *arguments: str) -> str:
    finished = subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", *arguments], capture_output=True, text=True
    )
    if finished.returncode != 0:
        said = finished.stderr.strip().splitlines() or ["git failed"]
        raise UsageError(f"--against-ref {shlex.quote(revision)}: {said[-1]}")
    return finished.stdout.strip()


def _require_own_file(spec: SweepSpec) -> None:
    """Raise UsageError if none of the user's files can differ between two revisions."""
    workload = spec.workload
    names = [n for n in (workload.architecture, workload.step, workload.dataset) if n is not None]
    theirs = [name for name in names if is_theirs(name)]
    if not theirs:
        raise UsageError(
            f"--against-ref: --arch {workload.architecture} is not a file in this "
            "repository; expected --arch model.py:factory, or a --step of your own"
        )
    if absolute := next((name for name in theirs if Path(name).is_absolute()), None):
        raise UsageError(
            f"--against-ref: got {shlex.quote(absolute)}; expected a path relative to the working "
            "directory, which the revision has too"
        )


def interpreter_of(place: str) -> str:
    """The interpreter of a virtual environment, or the file itself.

    Raises UsageError for a path without one.
    """
    path = Path(place)
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UsageError(
            f"--against-python {place}: expected a virtual environment or an interpreter; {python} "
            "is none"
        )
    return str(python)
