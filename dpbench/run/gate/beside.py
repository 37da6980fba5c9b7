"""`dpbench check` of the user's own change: two versions of the code, measured in turn.

A repetition runs `dpbench sweep` once for either version, in its own working directory; which of
them goes first alternates. What disturbs the machine disturbs both, and the runs are compared
repetition by repetition.
"""

from __future__ import annotations

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

from dpbench import store, units
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK
from dpbench.analysis.throughput import is_measured, throughput
from dpbench.architecture.naming import is_theirs, parse_name
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.run.gate.judging import (
    Judged,
    MeasuredFolder,
    Sides,
    assessed,
    conclude,
    parse_sweep,
    plan_sweep,
)
from dpbench.run.gate.looks import looks
from dpbench.run.gate.thresholds import Thresholds
from dpbench.run.interrupts import as_exceptions
from dpbench.specs import SweepSpec
from dpbench.store import SweepStore

NOW = "the working directory"
MEASURED = (0, 1, 6)
"""Exit statuses of a sweep that stored its trials, whether or not all of them completed."""


@dataclass(kw_only=True)
class _Version:
    """One version: how it is started, and what it has measured so far."""

    label: str
    words: Sequence[str]
    directory: Path
    environ: Mapping[str, str]
    records: list[TrialRecord] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)

    def run(self, number: int, scratch: Path) -> tuple[SweepSpec, list[TrialRecord]]:
        """Measure one repetition; raises UsageError, in the sweep's words, if it cannot begin."""
        results = scratch / f"{len(list(scratch.iterdir()))}"
        place = ("--results-dir", str(results), "--name", "pass", "--quiet", "--no-summary")
        finished = subprocess.run(
            [sys.executable, "-m", "dpbench", "sweep", *self.words, "--repetitions", "1", *place],
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


def check_beside(
    wanted: Thresholds, revision: str, axes: Mapping[str, Any], target: MeasuredFolder
) -> Judged:
    """Measure the code as it stands and as it was at a Git revision in turn, and judge them."""
    options, spec, _ = plan_sweep(parse_sweep(axes), target, wanted.tolerances)
    own_files = _require_own_files(spec)
    folder = target.folder()
    with as_exceptions(), _versions(revision, own_files, options, target) as (then, now):
        say(wanted.describe_plan())
        sides, seconds = _measure(wanted, then, now, folder, quiet=target.quiet)
    say(f"records are in {folder} and {_baseline_folder(folder)}")
    assessment = assessed(wanted, sides, alpha=ALPHA_OF_A_LOOK).with_pace(seconds)
    return conclude(assessment, wanted, sides, now.records)


@contextmanager
def _versions(
    revision: str, own_files: Sequence[str], options: SweepOptions, target: MeasuredFolder
) -> Iterator[tuple[_Version, _Version]]:
    """The baseline and the candidate."""
    words = options.words()
    if target.data_dir is not None:
        words += ["--data-dir", str(target.data_dir.resolve())]
    now = _Version(label=NOW, words=words, directory=Path.cwd(), environ=dict(os.environ))
    with _worktree(revision, own_files) as (directory, paths):
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        then = _Version(label=revision, words=words, directory=directory, environ=environ)
        yield then, now


def _measure(
    wanted: Thresholds, then: _Version, now: _Version, folder: Path, *, quiet: bool
) -> tuple[Sides, float]:
    """Repetitions of both versions until the verdict is clear or the budget is used up.

    Returns:
        The sides, and the seconds that a repetition took.
    """
    started, done = monotonic(), 0
    kept: list[SweepStore] = []

    def is_settled() -> bool:
        found = assessed(wanted, _sides(then, now, folder), alpha=ALPHA_OF_A_LOOK)
        return not found.verdict.needs_repetitions

    with TemporaryDirectory(prefix="dpbench-") as scratch, ExitStack() as stack:
        for goal in looks(wanted.repetitions, wanted.budget_seconds, is_settled):
            for number in range(done, goal):
                found = {}
                for version in (then, now) if number % 2 == 0 else (now, then):
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
                done = number + 1
                if not quiet:
                    before, after = (_speeds(found[id(one)][1]) for one in (then, now))
                    left = units.seconds((goal - done) * (monotonic() - started) / done)
                    rest = f"; {left} left" if done < goal else ""
                    say(f"[{done}/{goal}] {before} before, {after} now{rest}")
    return _sides(then, now, folder), (monotonic() - started) / done


def _sides(then: _Version, now: _Version, folder: Path) -> Sides:
    """Both as sides of one sweep, so that they are compared by repetition."""

    def side(version: _Version) -> Side:
        return Side(
            label=version.label,
            records=tuple(version.records),
            environments=version.environments,
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
def _worktree(revision: str, own_files: Sequence[str]) -> Iterator[tuple[Path, list[str]]]:
    """A git worktree of a revision: this process's working directory in it, and the folders where
    it finds packages that are installed from the repository.

    No hook of the repository runs. Raises UsageError where there is no such revision, or none of
    the user's files in it.
    """
    here = Path.cwd().resolve()
    root = Path(_git(revision, "rev-parse", "--show-toplevel"))
    commit = _git(
        *(revision, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"),
        otherwise="no such revision in this repository; expected a commit, branch or tag of it "
        "(a shallow clone has few: git fetch --unshallow)",
    )
    with TemporaryDirectory(prefix="dpbench-") as scratch:
        tree = Path(scratch).resolve() / "then"
        _git(revision, "worktree", "add", "--detach", str(tree), commit)
        try:
            folder = tree / here.relative_to(root.resolve())
            for name in own_files or ["."]:
                if not (folder / name).exists():
                    raise UsageError(
                        f"--against-ref {shlex.quote(revision)}: commit {commit[:12]} has no "
                        f"{here.relative_to(root.resolve()) / name}; expected a revision that has "
                        "it: commit it first, or name a later one"
                    )
            say(f"--against-ref {revision} is commit {commit[:12]}")
            if not _git(revision, "diff", commit, "--", str(root)):
                say(f"{revision} and {NOW} have the same files: nothing has changed")
            inside = [Path(p).resolve() for p in sys.path if p]
            mapped = [tree / p.relative_to(root) for p in inside if p.is_relative_to(root)]
            yield folder, [str(path) for path in (folder, *mapped, tree / "src")]
        finally:
            _git(revision, "worktree", "remove", "--force", str(tree))


def _git(revision: str, *arguments: str, otherwise: str | None = None) -> str:
    """The output of git; raises UsageError with `otherwise`, or git's last words, if it fails."""
    finished = subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", *arguments],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
    )
    if finished.returncode != 0:
        lines = finished.stderr.strip().splitlines() or ["git failed"]
        said = next((line for line in lines if line.startswith("fatal: ")), lines[-1])
        if "not a git repository" in said:
            otherwise = (
                f"{Path.cwd()} is not in a Git repository; expected a folder of the repository "
                "that has this revision"
            )
        raise UsageError(
            f"--against-ref {shlex.quote(revision)}: {otherwise or said.removeprefix('fatal: ')}"
        )
    return finished.stdout.strip()


def _require_own_files(spec: SweepSpec) -> list[str]:
    """The user's files, which may differ between two revisions; raises UsageError if none can."""
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
    return [name.origin for name in map(parse_name, theirs) if name.source == "file"]
