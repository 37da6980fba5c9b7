"""`dpbench check` of the user's own change: two versions of the code, measured in turn.

A repetition runs `dpbench sweep` once for either version, in its own working directory; which of
them goes first alternates. What disturbs the machine disturbs both, and the runs are compared
repetition by repetition.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from dpbench import store, units
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK
from dpbench.analysis.throughput import is_measured, throughput
from dpbench.architecture.naming import is_user_code, parse_name
from dpbench.errors import LaunchError, UsageError
from dpbench.git import without_git_variables
from dpbench.launch.worker import tied_to_this_process
from dpbench.messages import say
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.report.progress.trials import speed
from dpbench.run.gate.judging import (
    Judged,
    MeasuredFolder,
    assessed,
    conclude,
    parse_sweep,
    plan_sweep,
)
from dpbench.run.gate.looks import looks
from dpbench.run.gate.revision import checked_out
from dpbench.run.gate.thresholds import Thresholds
from dpbench.run.interrupts import as_exceptions
from dpbench.specs import SweepSpec
from dpbench.store import SweepStore
from dpbench.temporary import temporary_folder

NOW = "the working directory"
MEASURED = (0, 1, 6)
"""Exit statuses of a sweep that stored its trials, whether or not all of them completed."""
END_SECONDS = 10.0
"""Seconds that a sweep may take to end after SIGTERM."""


@dataclass(kw_only=True)
class _Version:
    """One version: how it is started, and what it has measured so far, which is in `folder`."""

    label: str
    words: Sequence[str]
    directory: Path
    environ: Mapping[str, str]
    folder: Path
    command: Sequence[str]
    """The check that measures it."""
    records: list[TrialRecord] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)

    def run(self, number: int, scratch: Path) -> str:
        """Measure one repetition, and return the speed of each row: "1,234 and 2,345 images/s".

        Raises UsageError or LaunchError, in the sweep's words, if it measured nothing.
        """
        results = scratch / f"{self.folder.name}-{number}"
        place = ("--results-dir", str(results), "--name", "pass", "--quiet", "--no-summary")
        command = ("sweep", *self.words, "--repetitions", "1", *place)
        status, said = self._dpbench(*command)
        stored = store.load(results / "pass") if store.holds_sweep(results / "pass") else None
        if status not in MEASURED or stored is None or not stored.records:
            last = (said.strip().splitlines() or [f"exit status {status}"])[-1]
            kind = UsageError if status == UsageError.exit_status else LaunchError
            raise kind(f"{self.label}: {last.removeprefix('dpbench: ')}")
        found = [
            replace(record, trial=replace(record.trial, repetition=number))
            for record in stored.records
        ]
        with (
            SweepStore(self.folder)
            if self.records
            else SweepStore.create(self.folder, stored.spec, self.command)
        ) as kept:
            for environment in stored.environments.values():
                kept.add_environment(environment)
            for record in found:
                kept.append(record)
        self.records += found
        self.environments |= stored.environments
        speeds = [speed(throughput(r)) if is_measured(r) else r.status.words for r in found]
        items = [record.item for record in found if is_measured(record)]
        return " and ".join(speeds) + (f" {items[0]}/s" if items else "")

    def _dpbench(self, *words: str) -> tuple[int, str]:
        """Run dpbench in a process that ends with this one; its exit status and its messages."""
        process = subprocess.Popen(
            # SIGTERM lets it end its ranks and remove its temporary files.
            tied_to_this_process([sys.executable, "-m", "dpbench", *words], signal.SIGTERM),
            cwd=self.directory,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C reaches this process alone, which ends the other once
            text=True,
            errors="backslashreplace",
        )
        with process:
            try:
                _, said = process.communicate()
            except BaseException:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
                process.kill()
                raise
        return process.returncode, said

    def side(self) -> Side:
        """The measurements as a side of one sweep, so that they are compared by repetition."""
        return Side(
            label=self.label,
            records=tuple(self.records),
            environments=self.environments,
            source="both versions",
        )


def check_beside(
    wanted: Thresholds, revision: str, axes: Mapping[str, Any], target: MeasuredFolder
) -> Judged:
    """Measure the code as it stands and as it was at a Git revision in turn, and judge them."""
    options, spec, _ = plan_sweep(parse_sweep(axes), target, wanted.tolerances)
    own_files = _require_own_files(spec)
    folder = target.folder()
    interrupts = nullcontext() if target.embedded else as_exceptions()
    with interrupts, _versions(revision, own_files, options, target, folder) as both:
        say(wanted.describe_plan())
        seconds = _measure(wanted, *both, quiet=target.quiet)
    then, now = both
    say(f"records are in {now.folder} and {then.folder}")
    sides = [(then.side(), now.side())]
    assessment = assessed(wanted, sides, alpha=ALPHA_OF_A_LOOK).with_pace(seconds)
    return conclude(assessment, wanted, sides, now.records)


@contextmanager
def _versions(
    revision: str,
    own_files: Sequence[str],
    options: SweepOptions,
    target: MeasuredFolder,
    folder: Path,
) -> Iterator[tuple[_Version, _Version]]:
    """The baseline and the candidate."""
    words = options.words()
    if target.data_dir is not None:
        words += ["--data-dir", str(target.data_dir.resolve())]
    environ = without_git_variables()
    now = _Version(
        label=NOW,
        words=words,
        directory=Path.cwd(),
        environ=environ,
        folder=folder,
        command=target.command,
    )
    with checked_out(revision, own_files) as (directory, paths):
        paths += filter(None, [environ.get("PYTHONPATH")])
        then = _Version(
            label=revision,
            words=words,
            directory=directory,
            environ={**environ, "PYTHONPATH": os.pathsep.join(paths)},
            folder=folder.with_name(f"{folder.name}-baseline"),
            command=target.command,
        )
        yield then, now


def _measure(wanted: Thresholds, then: _Version, now: _Version, *, quiet: bool) -> float:
    """Repetitions of both versions until the verdict is clear or the budget is used up; returns
    the seconds that each took."""
    started, done = monotonic(), 0

    def is_settled() -> bool:
        found = assessed(wanted, [(then.side(), now.side())], alpha=ALPHA_OF_A_LOOK)
        return not found.verdict.needs_repetitions

    with temporary_folder() as scratch:
        for goal in looks(wanted.repetitions, wanted.budget_seconds, is_settled):
            while done < goal:
                order = (then, now) if done % 2 == 0 else (now, then)
                speeds = {version.label: version.run(done, scratch) for version in order}
                done += 1
                left = units.seconds((goal - done) * (monotonic() - started) / done)
                rest = f"; {left} left" if done < goal else ""
                if not quiet:
                    before, after = speeds[then.label], speeds[now.label]
                    say(f"[{done}/{goal}] {before} before, {after} now{rest}")
    return (monotonic() - started) / done


def _require_own_files(spec: SweepSpec) -> list[str]:
    """The user's files, which may differ between two revisions; raises UsageError if none can."""
    workload = spec.workload
    names = [n for n in (workload.architecture, workload.step, workload.dataset) if n is not None]
    theirs = [name for name in names if is_user_code(name)]
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
