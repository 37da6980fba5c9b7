"""`dpbench check` of two versions, measured in turn: of the user's code, or of Python's packages.

Each version is measured by a process of its own (`worker`), a repetition at a time; which of them
goes first alternates. What disturbs the machine disturbs both, and they are compared repetition by
repetition.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from dpbench import shipped, store, units
from dpbench.analysis.comparisons.matching import Side
from dpbench.architecture.naming import is_user_code, parse_name
from dpbench.errors import DpbenchError, LaunchError, UsageError
from dpbench.git import without_git_variables
from dpbench.messages import option_words, say
from dpbench.options.check import CheckOptions
from dpbench.options.sweep import SweepOptions
from dpbench.parent_death import tied_to_this_process
from dpbench.records.trial import TrialRecord
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.check import worker
from dpbench.run.check.interim import interim_analyses
from dpbench.run.check.plan import Sides, plan_check, sweep_options
from dpbench.run.check.revision import checked_out, find_commit
from dpbench.run.interrupts import interruptible
from dpbench.specs import Labels, TrialSpec, WorkloadSpec
from dpbench.specs.sweep import palindrome, plan_trials
from dpbench.temporary import temporary_folder

END_SECONDS = 10.0
"""Seconds that a sweep may take to end after SIGTERM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """How one version is measured, and the folder that keeps what was."""

    label: str
    folder: Path
    python: str = sys.executable
    directory: Path = Path()
    paths: Sequence[str] = ()
    """Folders where its Python looks for packages before those of PYTHONPATH."""

    @contextmanager
    def measuring(
        self, options: SweepOptions, command: Sequence[str]
    ) -> Iterator[Callable[[int], list[TrialRecord]]]:
        """Start the process that measures the sweep of these options, whose `command` is stored.

        Gives a function that measures repetition `number` and returns its records. Raises
        UsageError, and the function LaunchError, in the words of a process that has ended.
        """
        sweep = {
            "options": options.model_dump(mode="json", exclude_unset=True),
            "folder": str(self.folder.absolute()),
            "command": [*command],
        }
        program = [self.python, "-m", worker.__name__, json.dumps(sweep)]
        environ = without_git_variables()
        if self.paths:
            paths = [*map(str, self.paths), *filter(None, [environ.get("PYTHONPATH")])]
            environ |= {"PYTHONPATH": os.pathsep.join(paths)}
        with (
            TemporaryFile("w+", errors="backslashreplace") as said,
            subprocess.Popen(
                # SIGTERM lets it end its ranks and remove its temporary files.
                tied_to_this_process(program, signal.SIGTERM),
                cwd=self.directory,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                process_group=0,  # Ctrl-C reaches this process alone, which ends the other once
                text=True,
            ) as process,
        ):
            asks, answers = process.stdin, process.stdout
            assert asks is not None
            assert answers is not None

            def wait(error: type[DpbenchError]) -> None:
                if answers.readline().strip() != worker.DONE:
                    status = process.wait()
                    said.seek(0)
                    last = said.read().strip().rpartition("\n")[2].removeprefix("dpbench: ")
                    raise error(f"{self.label}: {last or f'exit status {status}'}")

            def measure(number: int) -> list[TrialRecord]:
                with suppress(BrokenPipeError):  # why it has ended is read from what it said
                    print(number + 1, file=asks, flush=True)
                wait(LaunchError)
                records = store.load_sweep(self.folder).records
                return [record for record in records if record.trial.repetition == number]

            try:
                wait(UsageError)  # until it has planned its sweep
                say(f"{self.label} is ready to be measured")
                yield measure
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
                process.kill()

    def side(self) -> Side:
        """The measurements as a side of one sweep, so that they are compared by repetition."""
        stored = store.load_sweep(self.folder)
        return Side(
            label=self.label,
            records=stored.records,
            environments=stored.environments,
            run_id="both versions",
        )


def measure_versions(options: CheckOptions, progress: TrialProgress) -> Sides:
    """Measure the code as it stands, in this Python, and the other version in turn."""
    if options.against_ref is not None:
        find_commit(options.against_ref)  # a wrong one is reported before anything of the model
    sweep = sweep_options(options)
    plan = plan_check(options, sweep)
    say(*plan.notes)
    trials = plan_trials(plan.spec, 1)
    names = Labels.among(trials)
    before = plan.folder.with_name(f"{plan.folder.name}-baseline")
    label = "the working directory" if options.against_python is None else "this Python"
    now = Version(label=label, folder=plan.folder)
    done, measured = 0, now

    def sides() -> Sides:
        return [(then.side(), now.side())]

    def title(trial: TrialSpec) -> str:
        return f"{measured.label}: {names.label(trial)}"

    def interrupted_words() -> str:
        kept = f"; records are in {plan.folder} and {before}" if before.exists() else ""
        return f"no verdict after {units.counted(done, 'repetition')}{kept}"

    with (
        interruptible(interrupted_words),
        _baseline(options, plan.spec.base.workload, before) as then,
        then.measuring(sweep, plan.command) as measure_then,
        now.measuring(sweep, plan.command) as measure_now,
        progress,
    ):
        versions = ((then, measure_then), (now, measure_now))
        for goal in interim_analyses(options, sides):
            progress.planned(trials * 2 * (goal - done), title)
            for (version, measure), number in palindrome(versions, range(done, goal)):
                measured, done = version, number
                for record in measure(number):
                    progress.finished(record)
            done = goal
    say(f"records are in {now.folder} and {then.folder}")
    return sides()


@contextmanager
def _baseline(options: CheckOptions, workload: WorkloadSpec, folder: Path) -> Iterator[Version]:
    """The version that the present one is compared with."""
    if options.against_ref is not None:
        revision = options.against_ref
        with checked_out(revision, _user_files(workload)) as (directory, paths):
            yield Version(label=revision, folder=folder, directory=directory, paths=paths)
        return
    typed = str(options.against_python)
    python = shutil.which(typed)
    if python is None:
        raise UsageError(f"{option_words('against_python', typed)}: no such program")
    with temporary_folder() as place:
        for path in (shipped.PACKAGE, shipped.ARCHITECTURES, shipped.RESULTS):
            if shipped.PACKAGE not in path.parents:
                (place / path.name).symlink_to(path)
        # Not resolved: a link is how a Python knows its virtual environment.
        python = str(Path(python).absolute())
        yield Version(label=typed, folder=folder, python=python, paths=[str(place)])


def _user_files(workload: WorkloadSpec) -> list[str]:
    """The user's files, which may differ between two revisions; raises UsageError if none can."""
    if workload.script[:1] == ("-m",):
        return []
    names = workload.script[:1] or (workload.architecture, workload.dataset)
    user_code = [name for name in names if workload.script or is_user_code(name)]
    if not user_code:
        raise UsageError(
            f"{option_words('against_ref')}: {option_words('arch', workload.architecture)} is not "
            f"a file in this repository; expected {option_words('arch', 'model.py:factory')}"
        )
    if absolute := next((name for name in user_code if Path(name).is_absolute()), None):
        raise UsageError(
            f"{option_words('against_ref')}: got {shlex.quote(absolute)}; expected a path relative "
            "to the working directory, which the revision has too"
        )
    if workload.script:
        return user_code
    return [name.origin for name in map(parse_name, user_code) if name.source == "file"]
