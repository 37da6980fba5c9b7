"""`dpbench check` of two versions, measured in turn: of the user's code, or of Python's packages.

Each version is measured by a process of its own, a repetition at a time; which of them goes first
alternates. What disturbs the machine disturbs both, and they are compared repetition by repetition.

The process keeps its Python, its torch and, until it is told otherwise, the server that its ranks
are forked from, so that a repetition takes little more than its steps. Messages and answers are
lines of JSON: the sweep to plan, answered with the trials of a repetition; then each time how many
repetitions to reach, answered with the new records. Answers have what was said meanwhile, too.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from dpbench import folders, shipped
from dpbench.analysis.comparisons.matching import Side
from dpbench.architecture.naming import is_user_code, parse_name
from dpbench.codec import decode, encode, from_json
from dpbench.errors import USAGE, DpbenchError, UsageError
from dpbench.git import without_git_variables
from dpbench.launch.fork_server import end_fork_server, server_pid
from dpbench.launch.ranks import run_one_rank
from dpbench.launch.trial_runner import START_SECONDS
from dpbench.messages import option_words, said_to, say
from dpbench.options.check import CheckOptions
from dpbench.options.reading import read_options
from dpbench.options.sweep import SweepOptions
from dpbench.parent_death import tied_to_this_process
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import TrialRecord
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.check import worker
from dpbench.run.check.plan import Sides, for_verdict, keep_records, looks, sweep_of_check
from dpbench.run.check.revision import checked_out
from dpbench.run.interrupts import end_at_once, interruptible
from dpbench.run.results import new_folder
from dpbench.run.sweep.measuring import measure, unusable_configurations
from dpbench.run.sweep.plan import plan_sweep
from dpbench.specs import Labels, TrialSpec
from dpbench.specs.command_line import CommandLine
from dpbench.specs.sweep import configurations, palindrome, plan_trials
from dpbench.temporary import temporary_folder

END_SECONDS = 10.0
"""Seconds that a sweep may take to end after SIGTERM."""


class VersionProcess(subprocess.Popen[bytes]):
    """A version, and the process that measures it until this context ends."""

    def __init__(
        self,
        label: str,
        folder: Path,
        *,
        python: str = sys.executable,
        directory: Path = Path(),
        paths: Sequence[str] = (),
    ) -> None:
        """Start the process, whose results stand in `folder`; its Python looks for packages in
        `paths` before those of PYTHONPATH."""
        self.label, self.folder = label, folder
        self.heard = set[str]()
        """What it has said, or another version, so that it is not said again."""
        self._printed = TemporaryFile("w+", errors="backslashreplace")  # noqa: SIM115 closed with it
        environ = without_git_variables()
        if paths:
            paths = [*paths, *filter(None, [environ.get("PYTHONPATH")])]
            environ |= {"PYTHONPATH": os.pathsep.join(paths)}
        super().__init__(
            # SIGTERM lets it end its ranks and remove its temporary files.
            tied_to_this_process([python, "-m", worker.__name__], signal.SIGTERM),
            cwd=directory,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            process_group=0,  # Ctrl-C reaches this process alone, which ends the other once
            bufsize=0,  # nothing is left to be written to a process that has ended
        )

    def __exit__(self, *error: Any) -> None:
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.wait(END_SECONDS)
        self.kill()
        with self._printed:
            super().__exit__(*error)

    def plan(self, options: SweepOptions, command: CommandLine) -> list[TrialSpec]:
        """The trials of a repetition of this sweep, whose folder names the `command`. Raises
        UsageError, in the words of the process, if the sweep cannot be planned."""
        place = {"results_dir": str(self.folder.parent.absolute()), "name": self.folder.name}
        typed = options.model_dump(mode="json", exclude_unset=True) | place
        answer = self._ask(UsageError, options=typed, command=encode(command))
        return [decode(TrialSpec, trial) for trial in answer["trials"]]

    def measure_until(self, repetitions: int, *, with_new_server: bool) -> list[TrialRecord]:
        """Measure until so many repetitions are stored, and return the new records. From now on a
        new server forks the ranks, if asked for. Raises DpbenchError if the process ends."""
        answer = self._ask(DpbenchError, repetitions=repetitions, with_new_server=with_new_server)
        return [decode(TrialRecord, record) for record in answer["records"]]

    def _ask(self, error: type[DpbenchError], **message: Any) -> dict[str, Any]:
        """Send a message, and return the answer, after saying what came with it. If the process has
        ended, raises the error in its words."""
        assert self.stdin is not None
        assert self.stdout is not None
        with suppress(BrokenPipeError):  # why it has ended is read from what it printed
            self.stdin.write(f"{json.dumps(message)}\n".encode())
        if not (line := self.stdout.readline()):
            status = self.wait()
            self._printed.seek(0)
            last = self._printed.read().strip().rpartition("\n")[2]
            kind = UsageError if status == USAGE else error
            raise kind(f"{self.label}: {last or f'exit status {status}'}")
        answer = from_json(dict, line)
        said = [text for text in answer["said"] if text not in self.heard]
        self.heard.update(said)
        say(*said)
        return answer

    def side(self) -> Side:
        """The measurements as a side of one sweep, so that they are compared by repetition."""
        sweep = folders.load_sweep(self.folder)
        return Side(label=self.label, sweep=sweep, run_id="both versions")


class Answers(TrialProgress):
    """What the process of a version answers. It hears of records as the progress of the sweep."""

    def __init__(self, file: int) -> None:
        super().__init__(quiet=True)
        self.said = list[str]()
        self._file, self._records = file, list[TrialRecord | CollectiveRecord]()

    def finished(self, record: TrialRecord | CollectiveRecord, version: str = "") -> None:
        self._records.append(record)

    def send(self, trials: Sequence[TrialSpec] = ()) -> None:
        """Answer a message with these trials, and with what is new."""
        answer = {"trials": encode(trials), "records": encode(self._records), "said": self.said}
        os.write(self._file, json.dumps(answer).encode() + b"\n")
        self._records.clear()
        self.said.clear()


def answer_messages(file: int) -> int:
    """Plan and measure what a `VersionProcess` asks for on stdin, and answer into the file, until
    stdin ends. Returns the exit status."""
    end_at_once()
    answers, asked = Answers(file), json.loads(sys.stdin.readline())
    try:
        options = read_options(SweepOptions, asked["options"])
        with said_to(answers.said.append), plan_sweep(options) as plan:
            plan = for_verdict(plan, options, decode(CommandLine, asked["command"]))
            spec = plan.sweep.spec
            unusable = unusable_configurations(configurations(spec), plan.runner)
            trials = plan_trials(spec, 1)
            answers.send([trial for trial in trials if trial.configuration not in unusable])
            if first := sys.stdin.readline():  # the other version is planned, too
                measure(plan, answers, _repetitions(first, answers))
    except DpbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


def _repetitions(first: str, answers: Answers) -> Iterator[int]:
    """The numbers of repetitions that messages ask for; answers each when it is reached."""
    for message in chain([first], sys.stdin):
        asked = json.loads(message)
        if asked["with_new_server"] and server_pid() is not None:
            end_fork_server()
            run_one_rank(int, START_SECONDS)  # the next trial would pay for the server's start
        yield asked["repetitions"]
        answers.send()


def measure_versions(options: CheckOptions, progress: TrialProgress) -> Sides:
    """Measure the code as it stands, in this Python, and the other version in turn."""
    folder = new_folder(options.results_dir, options.name, otherwise="check")
    before = folder.with_name(f"{folder.name}-baseline")
    wanted, command = sweep_of_check(options, folder), options.command("check")
    label = "the working directory" if options.against_python is None else "this Python"

    def interrupted_words() -> str:
        return f"no verdict{f'; records are in {folder} and {before}' if before.exists() else ''}"

    with ExitStack() as stack:
        stack.enter_context(interruptible(interrupted_words))
        then = stack.enter_context(_baseline(options, wanted, before))
        say(f"starting {label} and {then.label}, each in a process of its own")
        trials = then.plan(wanted, command)
        # Not before, so that neither takes the start of the other for load on the machine.
        now = stack.enter_context(VersionProcess(label, folder))
        now.heard = then.heard
        now.plan(wanted, command)
        stack.enter_context(progress)
        label_of, done = Labels.among(trial.configuration for trial in trials).label, 0
        for goal in looks(options, lambda: (then.side(), now.side())):
            progress.planned([*trials] * 2 * (goal - done), label_of)
            # Ranks inherit the layout of memory of their server, which alone may make a version
            # some percent slower. So another one forks the second half of the first repetitions,
            # and others those that are added.
            renewed_at = done or math.ceil(goal / 2)
            for version, number in palindrome((then, now), range(done, goal)):
                is_renewed = number == renewed_at
                for record in version.measure_until(number + 1, with_new_server=is_renewed):
                    progress.finished(record, version.label)
            done = goal
    keep_records(folder, before)
    return then.side(), now.side()


@contextmanager
def _baseline(options: CheckOptions, sweep: SweepOptions, folder: Path) -> Iterator[VersionProcess]:
    """The version that the present one is compared with."""
    if options.against_ref is not None:
        label = options.against_ref
        with (
            checked_out(label, _user_files(sweep)) as (directory, paths),
            VersionProcess(label, folder, directory=directory, paths=paths) as process,
        ):
            yield process
        return
    label = str(options.against_python)
    if (found := shutil.which(label)) is None:
        raise UsageError(f"--against-python {label}: no such program")
    python = str(Path(found).absolute())  # not resolved: a link is how it knows its environment
    with temporary_folder() as place:
        for path in (shipped.PACKAGE, shipped.ARCHITECTURES, shipped.RESULTS):
            if shipped.PACKAGE not in path.parents:
                (place / path.name).symlink_to(path)
        with VersionProcess(label, folder, python=python, paths=[str(place)]) as process:
            yield process


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
