"""Processes that `dpbench check` measures versions with, of code or of Python's packages.

The process keeps its Python, its torch and, until a message asks for another one, the server that
its ranks are forked from, so that a repetition takes little more than its steps. Messages and
answers are lines of JSON: the sweep to plan, answered with its configurations; then each time how
many repetitions to reach, answered with the new records. Answers have what was said meanwhile, too.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
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
from dpbench.records.trial import TrialRecord
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.check.revision import checked_out
from dpbench.run.interrupts import end_at_once
from dpbench.run.sweep.plan import plan_sweep
from dpbench.specs import Configuration
from dpbench.specs.command_line import CommandLine
from dpbench.temporary import temporary_folder

ANSWERING_PROGRAM = (
    f"import sys; from {__name__} import answer_messages; sys.exit(answer_messages())"
)
"""The program of a `VersionProcess`."""
END_SECONDS = 10.0
"""Seconds that a sweep may take to end after SIGTERM."""


class VersionProcess(AbstractContextManager["VersionProcess"]):
    """A version, and the process that measures it until this context ends."""

    def __init__(
        self,
        label: str,
        sweep: SweepOptions,
        said: set[str],
        *,
        python: str = sys.executable,
        directory: Path = Path(),
        paths: Sequence[str] = (),
    ) -> None:
        """Start the process, which will measure the sweep; its Python looks for packages in `paths`
        before those of PYTHONPATH. What is in `said`, which versions share, is not said again."""
        self.label = label
        self._sweep = sweep
        self._said = said
        self._printed = TemporaryFile("w+", errors="backslashreplace")  # noqa: SIM115 closed with it
        environ = without_git_variables()
        if paths:
            paths = [*paths, *filter(None, [environ.get("PYTHONPATH")])]
            environ |= {"PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            # SIGTERM lets it end its ranks and remove its temporary files.
            tied_to_this_process([python, "-c", ANSWERING_PROGRAM], signal.SIGTERM),
            cwd=directory,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            encoding="utf-8",
            process_group=0,  # Ctrl-C reaches this process alone, which ends the other once
        )

    def __exit__(self, *_: object) -> None:
        # The pipe may hold a message that the process has not read before it ended.
        with self._printed, suppress(BrokenPipeError), self._process:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            self._process.kill()

    def plan(self, command: CommandLine) -> list[Configuration]:
        """The configurations of the sweep, whose folder names the `command` of the check. Raises
        UsageError, in the words of the process, if the sweep cannot be planned."""
        given = self._sweep.model_dump(mode="json", exclude_unset=True)
        answer = self._ask(UsageError, options=given, command=encode(command))
        return [decode(Configuration, configuration) for configuration in answer]

    def measure(self, repetitions: int, *, with_new_server: bool) -> list[TrialRecord]:
        """Measure until so many repetitions are stored, and return the new records. From now on a
        new server forks the ranks, if asked for. Raises DpbenchError if the process ends."""
        answer = self._ask(DpbenchError, repetitions=repetitions, with_new_server=with_new_server)
        return [decode(TrialRecord, record) for record in answer]

    def _ask(self, error: type[DpbenchError], **message: Any) -> list[Any]:
        """Send a message, and return the answer, after saying what came with it. If the process has
        ended, raises the error in its words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # why it has ended is read from what it printed
            print(json.dumps(message), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._printed.seek(0)
            last = self._printed.read().strip().rpartition("\n")[2]
            kind = UsageError if status == USAGE else error
            raise kind(f"{self.label}: {last or f'exit status {status}'}")
        answer = from_json(dict, line)
        new = [text for text in answer["said"] if text not in self._said]
        self._said.update(new)
        say(*new)
        return list(answer["result"])

    def side(self) -> Side:
        """The measurements as a side of a comparison."""
        folder = self._sweep.results_dir / str(self._sweep.name)
        return Side(label=self.label, sweep=folders.load_sweep(folder))


def answer_messages() -> int:
    """Plan and measure what a `VersionProcess` asks for on stdin, and answer on stdout, until stdin
    ends. Returns the exit status."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what else is printed goes to stderr
    end_at_once()
    said = list[str]()

    def answer(result: Sequence[Configuration | TrialRecord]) -> None:
        print(json.dumps({"result": encode(result), "said": said}), file=answers, flush=True)
        said.clear()

    try:
        asked = json.loads(sys.stdin.readline())
        options = read_options(SweepOptions, asked["options"])
        command = decode(CommandLine, asked["command"])
        progress = TrialProgress(quiet=True)
        with said_to(said.append), plan_sweep(options, command) as run:
            answer(run.sweep.spec.configurations)
            for message in sys.stdin:
                asked = json.loads(message)
                if asked["with_new_server"] and server_pid() is not None:
                    end_fork_server()
                    run_one_rank(int, START_SECONDS)  # not in the time of the next trial
                earlier = len(run.sweep.records)
                run.measure(progress, asked["repetitions"])
                answer(run.sweep.records[earlier:])
    except DpbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


@contextmanager
def baseline_version(
    options: CheckOptions, sweep: SweepOptions, said: set[str]
) -> Iterator[VersionProcess]:
    """The version that the present one is compared with."""
    if options.against_ref is not None:
        label = options.against_ref
        with (
            checked_out(label, _user_files(sweep)) as (directory, paths),
            VersionProcess(label, sweep, said, directory=directory, paths=paths) as process,
        ):
            yield process
        return
    label = str(options.against_python)
    program = shutil.which(label)
    if program is None:
        raise UsageError(f"--against-python {label}: no such program")
    python = str(Path(program).absolute())  # not resolved: a link is how it knows its environment
    with temporary_folder() as place:
        for path in (shipped.PACKAGE, shipped.ARCHITECTURES, shipped.RESULTS):
            if shipped.PACKAGE not in path.parents:
                (place / path.name).symlink_to(path)
        with VersionProcess(label, sweep, said, python=python, paths=[str(place)]) as process:
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
