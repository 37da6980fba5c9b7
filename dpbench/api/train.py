"""`dpbench.train`: the command of the same name, called from Python."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from signal import SIGINT
from typing import Any

from dpbench.api import host_program
from dpbench.api.arguments import (
    PROGRESS,
    bound,
    check_flags,
    check_folder,
    check_importable,
    defaults_of,
    document,
    plain,
    spellings_of,
    text,
    words,
)
from dpbench.api.trained import Trained
from dpbench.errors import Interrupted
from dpbench.messages import said_to, to_stderr
from dpbench.run.training.command import TrainCommand
from dpbench.run.training.request import TrainArguments

ONLY_OF_THE_COMMAND = (
    *("show_config", "dry_run", "memory", "json_result", "json_lines", "quiet"),
    *("seq_len", "local_rank"),
)
FLAGS = ("download", "oversubscribe", "debug", "no_eval", "progress")
PATHS = ("runs_dir", "config")


def train(**options: Any) -> Trained:
    """Train a model for some epochs, with evaluation and checkpoints.

    The arguments are the options of `dpbench train`, with the same defaults and checks. A
    comma-separated list there may be a list here, and a number a number (`gpus`: 2 is a count,
    [0, 1] are ids). An argument at its default leaves the option to the file of `config`, or to
    the run of `resume`. Everything is kept in a folder of its own in `runs_dir`. In a rank that a
    launcher started, the call trains as that rank and returns on every one.

    Raises UsageError for an impossible option, StoreError for a folder, DataError for data, and
    TrainingFailed if a rank fails. Ctrl-C is a KeyboardInterrupt that says how to go on.
    """
    return _train(bound(train, options, spellings_of(TrainCommand)))


document(train, TrainCommand, leaving_out=ONLY_OF_THE_COMMAND, flags={"progress": PROGRESS})


def _train(given: dict[str, Any]) -> Trained:
    check_flags(given, FLAGS)
    check_importable(given["arch"])
    given = plain(given, train)
    check_folder("runs_dir", given["runs_dir"])
    typed = {name: value if name in FLAGS else text(name, value) for name, value in given.items()}
    paths = {name: None if (path := typed[name]) is None else Path(path) for name in PATHS}
    defaults = defaults_of(train)
    asked = TrainArguments(
        typed=typed | paths,
        given={name for name in typed if text(name, given[name]) != text(name, defaults[name])},
        command=command(given),
        embedded=True,
    )
    said: list[str] = []

    def listen(message: str) -> None:
        said.append(message)
        if given["progress"]:
            to_stderr(message)

    with _alone(), said_to(listen):
        try:
            return _run(asked, progress=given["progress"], said=said)
        except Interrupted as error:
            if error.signal_number != SIGINT:
                raise
            raise KeyboardInterrupt(str(error)) from None


def command(given: dict[str, Any]) -> list[str]:
    """Words to type after "dpbench" for the same training."""
    return ["train", *words(given, train, flags=FLAGS, unsaid=("progress",), option_of={})]


def _alone() -> AbstractContextManager[None]:
    """In a rank of somebody's launcher no others are started."""
    if "RANK" in os.environ:
        return nullcontext()
    return host_program.alone(starts_ranks=True, call="dpbench.train")


def _run(asked: TrainArguments, *, progress: bool, said: list[str]) -> Trained:
    from dpbench.report.progress.training import TrainOutput

    output = TrainOutput(quiet=not progress, to_stderr=True)
    if "RANK" in os.environ:
        from dpbench.run.training.joined import join
        from dpbench.run.training.orders import Agreed

        try:
            joined = join(asked, output)
        except Agreed as agreed:
            raise agreed.error from None
        return Trained(folder=joined.folder, finished=joined.finished, said=tuple(said))
    from dpbench.run.training.running import train_here

    plan, finished = train_here(asked.read(), output)
    return Trained(folder=plan.place.path, finished=finished, said=tuple(said))
