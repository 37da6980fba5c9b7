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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from dpbench import folders, shipped, units
from dpbench.analysis.comparisons.matching import Side
from dpbench.architecture.naming import is_user_code, parse_name
from dpbench.codec import decode, encode, from_json
from dpbench.errors import USAGE, DpbenchError, UsageError
from dpbench.git import without_git_variables
from dpbench.messages import option_words, say
from dpbench.options.check import CheckOptions
from dpbench.options.sweep import SweepOptions
from dpbench.parent_death import tied_to_this_process
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.check import worker
from dpbench.run.check.plan import Sides, keep_records, looks, sweep_of_check
from dpbench.run.check.revision import checked_out, find_commit
from dpbench.run.interrupts import interruptible
from dpbench.run.results import new_folder
from dpbench.specs import Configuration, Labels, SweepSpec
from dpbench.specs.command_line import CommandLine
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
        self, options: SweepOptions, command: CommandLine, heard: set[str]
    ) -> Iterator[Callable[[int, bool], SweepSpec]]:
        """Start the process that measures the sweep of these options, whose `command` is stored.

        Gives a function that measures until so many repetitions are stored, anew with ranks of a
        new server, and returns what is measured; with 0, it waits until that is planned. It says
        what the process says, unless that was `heard` before, and raises UsageError for what cannot
        be planned, later DpbenchError, in the words of a process that has ended.
        """
        place = {"results_dir": str(self.folder.parent.absolute()), "name": self.folder.name}
        asked = {
            "options": options.model_dump(mode="json", exclude_unset=True) | place,
            "command": encode(command),
        }
        program = [self.python, "-m", worker.__name__, json.dumps(asked)]
        environ = without_git_variables()
        if self.paths:
            paths = [*map(str, self.paths), *filter(None, [environ.get("PYTHONPATH")])]
            environ |= {"PYTHONPATH": os.pathsep.join(paths)}
        with (
            TemporaryFile("w+", errors="backslashreplace") as printed,
            subprocess.Popen(
                # SIGTERM lets it end its ranks and remove its temporary files.
                tied_to_this_process(program, signal.SIGTERM),
                cwd=self.directory,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                process_group=0,  # Ctrl-C reaches this process alone, which ends the other once
                bufsize=0,  # nothing is left to be written to a process that has ended
            ) as process,
        ):
            asks, answers = process.stdin, process.stdout
            assert asks is not None
            assert answers is not None

            def measure(repetitions: int, anew: bool) -> SweepSpec:
                with suppress(BrokenPipeError):  # why it has ended is read from what it printed
                    asks.write(f"{json.dumps([repetitions, anew])}\n".encode())
                if not (answer := answers.readline()):
                    status = process.wait()
                    printed.seek(0)
                    last = printed.read().strip().rpartition("\n")[2]
                    error = DpbenchError if repetitions and status != USAGE else UsageError
                    raise error(f"{self.label}: {last or f'exit status {status}'}")
                content = from_json(dict, answer)
                said = [message for message in content["said"] if message not in heard]
                heard.update(said)
                say(*said)
                return decode(SweepSpec, content["sweep"])

            try:
                yield measure
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
                process.kill()

    def side(self) -> Side:
        """The measurements as a side of one sweep, so that they are compared by repetition."""
        sweep = folders.load_sweep(self.folder)
        return Side(label=self.label, sweep=sweep, run_id="both versions")


def measure_versions(options: CheckOptions, progress: TrialProgress) -> Sides:
    """Measure the code as it stands, in this Python, and the other version in turn."""
    if options.against_ref is not None:
        find_commit(options.against_ref)  # a wrong one is reported before anything of the model
    folder = new_folder(options.results_dir, options.name, otherwise="check")
    wanted = sweep_of_check(options, folder)
    command, heard = options.command("check"), set[str]()
    before = folder.with_name(f"{folder.name}-baseline")
    label = "the working directory" if options.against_python is None else "this Python"
    now = Version(label=label, folder=folder)
    done, measured = 0, now

    def sides() -> Sides:
        return then.side(), now.side()

    def interrupted_words() -> str:
        kept = f"; records are in {folder} and {before}" if before.exists() else ""
        return f"no verdict after {units.counted(done, 'repetition')}{kept}"

    with (
        interruptible(interrupted_words),
        _baseline(options, wanted, before) as then,
        now.measuring(wanted, command, heard) as measure_now,
        ExitStack() as stack,
    ):
        say(f"starting {now.label} and {then.label}, each in a process of its own")
        trials = plan_trials(measure_now(0, False), 1)
        # Not before, so that neither takes the start of the other for load on the machine.
        measure_then = stack.enter_context(then.measuring(wanted, command, heard))
        measure_then(0, False)
        stack.enter_context(progress)
        names = Labels.among(trial.configuration for trial in trials)

        def title(configuration: Configuration) -> str:
            return f"{measured.label}: {names.label(configuration)}"

        versions = ((then, measure_then), (now, measure_now))
        for goal in looks(options, sides):
            progress.planned(trials * 2 * (goal - done), title)
            first = done
            for (version, measure), number in palindrome(versions, range(first, goal)):
                measured, done = version, number
                measure(number + 1, number == first > 0)
                for record in folders.load_sweep(version.folder).records:
                    if record.trial.repetition == number:
                        progress.finished(record)
            done = goal
    keep_records(now.folder, then.folder)
    return sides()


@contextmanager
def _baseline(options: CheckOptions, wanted: SweepOptions, folder: Path) -> Iterator[Version]:
    """The version that the present one is compared with."""
    if options.against_ref is not None:
        revision = options.against_ref
        with checked_out(revision, _user_files(wanted)) as (directory, paths):
            yield Version(label=revision, folder=folder, directory=directory, paths=paths)
        return
    typed = str(options.against_python)
    python = shutil.which(typed)
    if python is None:
        raise UsageError(f"--against-python {typed}: no such program")
    with temporary_folder() as place:
        for path in (shipped.PACKAGE, shipped.ARCHITECTURES, shipped.RESULTS):
            if shipped.PACKAGE not in path.parents:
                (place / path.name).symlink_to(path)
        # Not resolved: a link is how a Python knows its virtual environment.
        python = str(Path(python).absolute())
        yield Version(label=typed, folder=folder, python=python, paths=[str(place)])


def _user_files(options: SweepOptions) -> list[str]:
    """The user's files, which may differ between two revisions; raises UsageError if none can."""
    if options.module:
        return []
    named = [options.script] if options.script else [options.arch[0], options.data]
    user_code = [name for name in named if name and (options.script or is_user_code(name))]
    if not user_code:
        raise UsageError(
            f"--against-ref: {option_words('arch', options.arch[0])} is not a file in this "
            "repository; expected --arch model.py:factory"
        )
    if absolute := next((name for name in user_code if Path(name).is_absolute()), None):
        raise UsageError(
            f"--against-ref: got {shlex.quote(absolute)}; expected a path relative to the working "
            "directory, which the revision has too"
        )
    if options.script:
        return user_code
    return [name.origin for name in map(parse_name, user_code) if name.source == "file"]
