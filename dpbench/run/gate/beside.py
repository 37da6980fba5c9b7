"""`dpbench check` of two versions, measured in turn: of the user's code, or of Python's packages.

A repetition runs `dpbench sweep` once for either version, in its own process; which of them goes
first alternates. What disturbs the machine disturbs both, and the runs are compared repetition by
repetition.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from dpbench import shipped, store, units
from dpbench.analysis.comparisons.matching import Side
from dpbench.architecture.naming import is_user_code, parse_name
from dpbench.errors import Interrupted, LaunchError, UsageError
from dpbench.git import without_git_variables
from dpbench.parent_death import tied_to_this_process
from dpbench.records.trial import TrialRecord
from dpbench.run.gate.judging import Check, Sides
from dpbench.run.gate.revision import checked_out, find_commit
from dpbench.run.interrupts import as_exceptions
from dpbench.specs import Labels, TrialSpec, WorkloadSpec
from dpbench.specs.sweep import plan_trials
from dpbench.store import ResultsStore
from dpbench.temporary import temporary_folder

END_SECONDS = 10.0
"""Seconds that a sweep may take to end after SIGTERM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """How the sweeps of one version are started, and the folder that keeps what they measure."""

    label: str
    folder: Path
    python: str = sys.executable
    directory: Path = Path()
    paths: Sequence[str] = ()
    """Folders where its Python looks for packages before those of PYTHONPATH."""

    def measure(
        self, words: Sequence[str], command: Sequence[str], number: int
    ) -> list[TrialRecord]:
        """Measure the sweep of these words as repetition `number` of a check, whose `command` is
        stored.

        Raises UsageError or LaunchError, in the sweep's words, if it measured nothing.
        """
        with temporary_folder() as results:
            place = ("--results-dir", str(results), "--name", "pass", "--quiet", "--no-summary")
            status, said = self.run("-m", "dpbench", "sweep", "--repetitions", "1", *place, *words)
            found = results / "pass"
            stored = store.load_sweep(found) if store.holds_sweep(found) else None
        if stored is None or not stored.records:
            kind = UsageError if status == UsageError.exit_status else LaunchError
            raise kind(f"{self.label}: {said or f'exit status {status}'}")
        records = [
            replace(one, trial=replace(one.trial, repetition=number)) for one in stored.records
        ]
        with (
            ResultsStore(self.folder)
            if number
            else ResultsStore.create(self.folder, command, stored.spec)
        ) as kept:
            for environment in stored.environments.values():
                kept.add_environment(environment)
            for record in records:
                kept.append(record)
        return records

    def run(self, *words: str) -> tuple[int, str]:
        """Run its Python in a process that ends with this one; the exit status and the last
        message."""
        environ = without_git_variables()
        paths = [*map(str, self.paths), *filter(None, [environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            # SIGTERM lets it end its ranks and remove its temporary files.
            tied_to_this_process([self.python, *words], signal.SIGTERM),
            cwd=self.directory,
            env=environ | ({"PYTHONPATH": os.pathsep.join(paths)} if self.paths else {}),
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
        lines = said.strip().splitlines() or [""]
        return process.returncode, lines[-1].removeprefix("dpbench: ")

    def side(self) -> Side:
        """The measurements as a side of one sweep, so that they are compared by repetition."""
        stored = store.load_sweep(self.folder)
        return Side(
            label=self.label,
            records=stored.records,
            environments=stored.environments,
            source="both versions",
        )


def measure_versions(check: Check) -> Sides:
    """Measure the code as it stands, in this Python, and the other version in turn."""
    options, progress = check.options, check.progress
    if options.against_ref is not None:
        find_commit(options.against_ref)  # a wrong one is reported before anything of the model
    asked, spec, _ = check.sweep()
    trials, command = plan_trials(spec, 1), ["check", *options.words()]
    names = Labels.among(trials)
    folder = check.new_folder()
    before = folder.with_name(f"{folder.name}-baseline")
    with as_exceptions(), _baseline(check, spec.trial.workload, before) as then, progress:
        label = "the working directory" if options.against_python is None else "this Python"
        now = version = Version(label=label, folder=folder)

        def title(trial: TrialSpec) -> str:
            return f"{version.label}: {names.configuration(trial)}"

        done = 0
        try:
            for goal in check.looks(lambda: [(then.side(), now.side())]):
                progress.planned(trials * 2 * (goal - done), title)
                for number in range(done, goal):
                    for version in (then, now) if number % 2 == 0 else (now, then):
                        started = monotonic()
                        records = version.measure(asked.words(), command, number)
                        each = (monotonic() - started) / len(records)
                        for record in records:
                            progress.finished(replace(record, duration_seconds=each))
                    done = number + 1
        except (KeyboardInterrupt, Interrupted) as error:
            words = f"interrupted after {units.counted(done, 'repetition')}, without a verdict"
            if then.folder.exists():
                words += f"; records are in {now.folder} and {then.folder}"
            raise Interrupted(getattr(error, "signal_number", signal.SIGINT), words) from None
    progress.note(f"records are in {now.folder} and {then.folder}")
    return [(then.side(), now.side())]


@contextmanager
def _baseline(check: Check, workload: WorkloadSpec, folder: Path) -> Iterator[Version]:
    """The version that the present one is compared with."""
    if check.options.against_ref is not None:
        revision = check.options.against_ref
        files = _own_files(workload)
        with checked_out(revision, files, check.progress.note) as (directory, paths):
            yield Version(label=revision, folder=folder, directory=directory, paths=paths)
        return
    typed = str(check.options.against_python)
    python = shutil.which(typed)
    if python is None:
        raise UsageError(f"--against-python {shlex.quote(typed)}: no such program")
    with temporary_folder() as place:
        for path in (shipped.PACKAGE, shipped.ARCHITECTURES, shipped.RESULTS):
            if shipped.PACKAGE not in path.parents:
                (place / path.name).symlink_to(path)
        # Not resolved: a link is how a Python knows its virtual environment.
        python = str(Path(python).absolute())
        version = Version(label=typed, folder=folder, python=python, paths=[str(place)])
        status, said = version.run("-c", "import dpbench.cli.app, torch")
        if status:
            raise UsageError(
                f"--against-python {shlex.quote(typed)}: {said}; expected a Python that has torch "
                "and what dpbench needs: pip install dpbench"
            )
        yield version


def _own_files(workload: WorkloadSpec) -> list[str]:
    """The user's files, which may differ between two revisions; raises UsageError if none can."""
    if workload.script[:1] == ("-m",):
        return []
    names = workload.script[:1] or (workload.architecture, workload.dataset)
    theirs = [one for one in names if workload.script or is_user_code(one)]
    if not theirs:
        raise UsageError(
            f"--against-ref: --arch {workload.architecture} is not a file in this "
            "repository; expected --arch model.py:factory"
        )
    if absolute := next((name for name in theirs if Path(name).is_absolute()), None):
        raise UsageError(
            f"--against-ref: got {shlex.quote(absolute)}; expected a path relative to the working "
            "directory, which the revision has too"
        )
    if workload.script:
        return theirs
    return [name.origin for name in map(parse_name, theirs) if name.source == "file"]
