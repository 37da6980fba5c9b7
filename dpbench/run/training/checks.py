"""Checks options of a training against each other, before anything looks at the machine."""

from __future__ import annotations

from pathlib import Path

from dpbench import architecture
from dpbench.errors import UsageError, about
from dpbench.run.shared_options import STAGED_BACKEND, require_setting
from dpbench.run.training.options import TrainOptions
from dpbench.specs.settings import AUTO, settings_of
from dpbench.specs.traits import IMPLEMENTATIONS


def check_values(options: TrainOptions, notes: list[str]) -> None:
    """Raises UsageError for an architecture that there is not, and for two names of one option."""
    with about("arch", "input_shape"):
        architecture.check(options.architecture)
    _check_two_backends(options, notes)
    _check_two_evaluations(options)


def check(options: TrainOptions) -> None:
    """Raises UsageError for options that contradict each other, or that nothing would heed.

    What depends on the devices is in `training.job.refuse_unusable`.
    """
    _check_backend(options)
    for name, one in settings_of(TrainOptions).items():
        if (value := getattr(options, name)) is not None:
            asked = f"{one.option} {one.text(value)}"
            require_setting(name, asked, (options.implementation,), several=False)
    _check_warmup(options)
    _check_shares(options)
    with about("checkpoint"):
        _check_checkpoint(options.run.checkpoint)
    with about("download", "data", "data_dir"):
        _check_download(options)


def _check_two_backends(options: TrainOptions, notes: list[str]) -> None:
    if options.backend is not AUTO and options.sync_backend is not None:
        raise UsageError(
            f"got --backend {options.backend} and --sync-backend {options.sync_backend}, which "
            "are two names of one option; give one of them",
            about=("backend", "sync_backend"),
        )
    for option, asked in (("--backend", options.backend), ("--sync-backend", options.sync_backend)):
        if asked == STAGED_BACKEND:
            notes.append(
                f"{option} {STAGED_BACKEND} means shm: ranks reduce through the host's memory"
            )


def _check_two_evaluations(options: TrainOptions) -> None:
    if options.no_eval and options.evaluate not in (None, "off"):
        raise UsageError(
            f"got --evaluate {options.evaluate} and --no-eval, which means --evaluate off; give "
            "one of them",
            about=("evaluate", "no_eval"),
        )


def _check_backend(options: TrainOptions) -> None:
    only = IMPLEMENTATIONS[options.implementation].backend
    if options.process_backend is not AUTO and only is not None:
        raise UsageError(
            f"--backend {options.process_backend}: {options.implementation} has no choice of "
            "backend; leave --backend out, or take an implementation that has one, such as ddp",
            about=("backend", "sync_backend", "implementation"),
        )


def _check_warmup(options: TrainOptions) -> None:
    if options.lr_warmup and options.lr_scaling == "none":
        raise UsageError(
            f"--lr-warmup {options.lr_warmup}: the rate rises from --lr to the scaled one, and "
            "with --lr-scaling none they are the same; add --lr-scaling linear or sqrt",
            about=("lr_warmup", "lr_scaling"),
        )


def _check_shares(options: TrainOptions) -> None:
    if options.shares and options.balance != "equal":
        raise UsageError(
            f"got --shares and --balance {options.balance}, which sets the shares; give one of "
            "them",
            about=("shares", "balance"),
        )


def _check_checkpoint(path: str | None) -> None:
    """Now, as the first checkpoint is written when an epoch has been trained."""
    if path is None:
        return
    if Path(path).is_dir():
        raise UsageError(f"--checkpoint {path} is a folder; expected the name of a file")
    if not Path(path).parent.is_dir():
        raise UsageError(f"--checkpoint {path}: there is no folder {Path(path).parent}; make it")


def _check_download(options: TrainOptions) -> None:
    if not options.download:
        return
    if options.data is not AUTO and options.data != "mnist":
        raise UsageError(
            f"--download fetches MNIST, but --data is {options.data}; leave it out, or take "
            "--data mnist"
        )
    if options.data is AUTO or options.data_dir is None:
        missing = "--data mnist" if options.data is AUTO else "--data-dir data"
        raise UsageError(
            "--download needs --data mnist, and --data-dir with the folder to download to; add "
            f"{missing}"
        )
