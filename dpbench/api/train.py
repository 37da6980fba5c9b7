"""`dpbench.train`: the command of the same name, called from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from signal import SIGINT
from typing import Any

from dpbench.api import host_program
from dpbench.api.arguments import (
    check_flags,
    check_folder,
    check_importable,
    defaults_of,
    plain,
    text,
    words,
)
from dpbench.api.trained import Trained
from dpbench.cli.messages import said_to, to_stderr
from dpbench.cli.train_asked import Asked
from dpbench.errors import Interrupted

Count = int | str
Number = float | str
PathText = str | PathLike[str]
FLAGS = ("oversubscribe", "debug", "no_eval", "progress")
PATHS = ("runs_dir", "config")


def train(
    *,
    arch: str = "mnist_cnn",
    input_shape: str | Iterable[int] | None = None,
    data: str | None = None,
    data_dir: PathText | None = None,
    limit_train: Count | None = None,
    epochs: Count | None = None,
    max_steps: Count | None = None,
    batch_size: Count = 64,
    seed: Count = 0,
    config: PathText | None = None,
    optimizer: str = "adadelta",
    lr: Number = 1.0,
    gamma: Number | None = None,
    lr_scaling: str = "none",
    lr_warmup: Count = 0,
    accumulate: Count = 1,
    last_window: str = "step",
    max_norm: Number | None = None,
    dtype: str = "f32",
    compile: str = "none",
    channels_last: bool | str = "no",
    checkpoint_activations: bool | str = "no",
    implementation: str = "ddp",
    backend: str | None = None,
    sync_backend: str | None = None,
    gpus: Count | Iterable[int] | None = None,
    threads: Count | None = None,
    oversubscribe: bool = False,
    sync_every: Count | None = None,
    bucket_cap_mb: Number | None = None,
    balance: str = "equal",
    shares: str | Iterable[float] | None = None,
    timeout: Number = "120s",
    debug: bool = False,
    prefetch: Count = 0,
    evaluate: str | None = None,
    no_eval: bool = False,
    log_interval: Count = 20,
    check_sync_every: Count | None = None,
    checkpoint_every: Count | None = None,
    max_checkpoints: Count = 10,
    resume: PathText | None = None,
    name: str | None = None,
    runs_dir: PathText = "runs",
    progress: bool = False,
) -> Trained:
    """Trains a model for some epochs, with evaluation and checkpoints.

    Options, defaults and checks are those of `dpbench train`; a comma-separated list there may be
    a list here, and a number a number (`gpus`: 2 is a count, [0, 1] are ids). An argument at its
    default leaves the option to the file of `config`, or to the run of `resume`. Everything is
    kept in a folder of its own in `runs_dir`. Prints nothing but, with `progress`, what the
    command prints, on stderr. In a rank that a launcher started it trains as that rank, and
    returns on every one.

    Raises UsageError for an option that cannot be, StoreError for a folder, DataError for data,
    TrainingFailed if a rank fails. Ctrl-C is a KeyboardInterrupt that says how to go on.
    """
    return _train(locals())


def _train(given: dict[str, Any]) -> Trained:
    check_flags(given, FLAGS)
    check_importable(given["arch"])
    given = plain(given, train)
    check_folder("runs_dir", given["runs_dir"])
    typed = {name: value if name in FLAGS else text(name, value) for name, value in given.items()}
    paths = {name: None if (path := typed[name]) is None else Path(path) for name in PATHS}
    defaults = defaults_of(train)
    asked = Asked(
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
    """What to type after "dpbench" for the same training."""
    return ["train", *words(given, train, flags=FLAGS, unsaid=("progress",), option_of={})]


def _alone() -> AbstractContextManager[None]:
    """In a rank of somebody's launcher no others are started."""
    if "RANK" in os.environ:
        return nullcontext()
    return host_program.alone(starts_ranks=True, call="dpbench.train")


def _run(asked: Asked, *, progress: bool, said: list[str]) -> Trained:
    from dpbench.cli.train_execution import TrainOutput

    output = TrainOutput(quiet=not progress, to_stderr=True)
    if "RANK" in os.environ:
        from dpbench.cli.train_joined import join
        from dpbench.cli.train_orders import Agreed

        try:
            joined = join(asked, output)
        except Agreed as agreed:
            raise agreed.error from None
        return Trained(folder=joined.folder, finished=joined.finished, said=tuple(said))
    from dpbench.cli.train_execution import train_here

    plan, finished = train_here(asked.read(), output)
    return Trained(folder=plan.place.path, finished=finished, said=tuple(said))
