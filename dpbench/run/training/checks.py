"""Options of a training that contradict each other, or that nothing would heed."""

from __future__ import annotations

from pathlib import Path

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.run.shared_options import STAGED_BACKEND
from dpbench.run.training.options import TrainOptions
from dpbench.settings import AUTO, settings_of
from dpbench.traits import IMPLEMENTATIONS


def check_values(options: TrainOptions, notes: list[str]) -> None:
    """Raises UsageError for an architecture that there is not, and for two names of one option."""
    architecture.check(options.architecture)
    _two_backends(options, notes)
    _two_evaluations(options)


def check(options: TrainOptions) -> None:
    """Raises UsageError for options that contradict each other, or that nothing would heed.

    What depends on the devices is in `training.job.refuse_unusable`.
    """
    for part in (_backend, _own_settings, _warmup, _shares, _checkpoint, _download):
        part(options)


def _two_backends(options: TrainOptions, notes: list[str]) -> None:
    if options.backend is not AUTO and options.sync_backend is not None:
        raise UsageError(
            f"got --backend {options.backend} and --sync-backend {options.sync_backend}, which "
            "are two names of one option; give one of them"
        )
    for option, asked in (("--backend", options.backend), ("--sync-backend", options.sync_backend)):
        if asked == STAGED_BACKEND:
            notes.append(
                f"{option} {STAGED_BACKEND} means shm: ranks reduce through the host's memory"
            )


def _two_evaluations(options: TrainOptions) -> None:
    if options.no_eval and options.evaluate not in (None, "off"):
        raise UsageError(
            f"got --evaluate {options.evaluate} and --no-eval, which means --evaluate off; give "
            "one of them"
        )


def _backend(options: TrainOptions) -> None:
    only = IMPLEMENTATIONS[options.implementation].backend
    if options.process_backend is not AUTO and only is not None:
        raise UsageError(
            f"--backend {options.process_backend}: {options.implementation} has no choice of "
            "backend; leave --backend out, or take an implementation that has one, such as ddp"
        )


def _own_settings(options: TrainOptions) -> None:
    """Settings that only some implementations have."""
    traits = IMPLEMENTATIONS[options.implementation]
    for name, declared in settings_of(TrainOptions).items():
        value = getattr(options, name)
        if value is None or traits.has_setting(name):
            continue
        having = [one for one, others in IMPLEMENTATIONS.items() if others.has_setting(name)]
        remedy = having[0] if len(having) == 1 else "one of them"
        raise UsageError(
            f"{declared.option} {value:g}: it is an option of {', '.join(having)}, but "
            f"--implementation is {options.implementation}; take {remedy}, or leave it out"
        )


def _warmup(options: TrainOptions) -> None:
    if options.lr_warmup and options.lr_scaling == "none":
        raise UsageError(
            f"--lr-warmup {options.lr_warmup}: the rate rises from --lr to the scaled one, and "
            "with --lr-scaling none they are the same; add --lr-scaling linear or sqrt"
        )


def _shares(options: TrainOptions) -> None:
    if options.shares and options.balance != "equal":
        raise UsageError(
            f"got --shares and --balance {options.balance}, which sets the shares; give one of them"
        )


def _checkpoint(options: TrainOptions) -> None:
    """Now, as the first checkpoint is written when an epoch has been trained."""
    named = options.run.checkpoint
    if named is None:
        return
    if Path(named).is_dir():
        raise UsageError(f"--checkpoint {named} is a folder; expected the name of a file")
    if not Path(named).parent.is_dir():
        raise UsageError(f"--checkpoint {named}: there is no folder {Path(named).parent}; make it")


def _download(options: TrainOptions) -> None:
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
