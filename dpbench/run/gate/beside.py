"""`dpbench check` of the user's own change: two versions of the code, measured in turn.

Each pass runs `dpbench sweep` with one repetition for either version, in its own working directory
and with its own interpreter; which of them goes first alternates. What disturbs the machine
disturbs both, and the runs are compared pass by pass.
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
from time import monotonic
from typing import Any

from dpbench import architecture, store
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK
from dpbench.analysis.throughput import is_measured, throughput
from dpbench.architecture import is_theirs
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.run.gate.judging import (
    MOST_LOOKS,
    Gate,
    MeasuredFolder,
    Sides,
    build_sweep,
    conclude,
    parse_sweep,
    without_extra_rows,
)
from dpbench.run.gate.thresholds import check_baselines_of_efficiency
from dpbench.run.interrupts import as_exceptions
from dpbench.specs import SweepSpec
from dpbench.store import SweepStore

NOW = "the working directory"
GROWTH = 1.5
"""How many times as many passes the next look has."""
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
        """Measure one pass. Raises UsageError, in the words of the sweep, if it cannot begin."""
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
    """Measure the code as it stands and the other version in turn, and judge pass by pass."""
    options = parse_sweep(axes)
    spec, _ = build_sweep(options, target)
    if other.ref is not None:
        _require_own_file(spec)
    check_baselines_of_efficiency(gate.thresholds.tolerances, spec)
    gate.outputs.check()
    options = without_extra_rows(options, gate.thresholds.tolerances)
    if other.python is not None:  # another torch is another environment, which is the question
        gate = replace(gate, force=True)
    folder = target.folder()
    say(gate.thresholds.describe_repetitions())
    with as_exceptions(), _versions(other, options, target) as (then, now):
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
    """Passes of both versions until the verdict is clear or the budget is spent."""
    started, passes = monotonic(), 0
    kept: list[SweepStore] = []
    with TemporaryDirectory(prefix="dpbench-") as scratch, ExitStack() as stack:
        for look in range(MOST_LOOKS):
            wanted = math.ceil(gate.thresholds.repetitions * GROWTH**look)
            each = (monotonic() - started) / passes if passes else 0.0
            left = gate.thresholds.budget_seconds - (monotonic() - started)
            if passes and (wanted - passes) * each > left:
                say(f"the budget leaves no time for another look, at {wanted} passes")
                break
            for number in range(passes, wanted):
                order = (then, now) if number % 2 == 0 else (now, then)
                found = {id(version): version.run(number, Path(scratch)) for version in order}
                if not kept:
                    for place, version in ((folder, now), (_baseline_folder(folder), then)):
                        created = SweepStore.create(place, found[id(version)][0], sys.argv[1:])
                        kept.append(stack.enter_context(created))
                for version, stored in zip((now, then), kept, strict=True):
                    for environment in version.environments.values():
                        stored.add_environment(environment)
                    for record in found[id(version)][1]:
                        stored.append(record)
                if not target.quiet:
                    before, after = (_speeds(found[id(one)][1]) for one in (then, now))
                    say(f"pass {number + 1}: {before} before, {after} now")
            passes = wanted
            sides = _sides(other, then, now, folder)
            if not gate.assess(sides, alpha=ALPHA_OF_A_LOOK).unsettled():
                break
    return _sides(other, then, now, folder)


def _sides(other: Other, then: _Version, now: _Version, folder: Path) -> Sides:
    """Both as sides of one sweep, so that they are compared pass by pass."""

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
    """The speed of each row of a pass: "1,234 and 2,345 images/s"."""
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
