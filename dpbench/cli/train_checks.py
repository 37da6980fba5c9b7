"""Which options of `dpbench train` go together."""

from __future__ import annotations

from dpbench.cli.train_options import TrainSettings
from dpbench.errors import UsageError
from dpbench.traits import BUCKETED, IMPLEMENTATIONS


def check(settings: TrainSettings) -> None:
    """Raises UsageError for options that contradict each other, or that nothing would heed.

    What depends on the devices is in `training.job.refuse_unusable`.
    """
    for part in (_backend, _sync_every, _bucket_cap, _warmup, _shares):
        part(settings)


def _backend(settings: TrainSettings) -> None:
    only = IMPLEMENTATIONS[settings.implementation].backend
    if settings.backend is not None and only is not None:
        raise UsageError(
            f"--backend {settings.backend}: {settings.implementation} has no choice of backend; "
            "leave --backend out, or take an implementation that has one, such as ddp"
        )


def _sync_every(settings: TrainSettings) -> None:
    every = settings.sync_every
    if every is not None and not IMPLEMENTATIONS[settings.implementation].averages_parameters:
        raise UsageError(
            f"--sync-every {every}: it is an option of local-sgd, but --implementation is "
            f"{settings.implementation}; take local-sgd, or leave --sync-every out"
        )


def _bucket_cap(settings: TrainSettings) -> None:
    cap = settings.bucket_cap_mb
    if cap is None:
        return
    if settings.implementation not in BUCKETED:
        raise UsageError(
            f"--bucket-cap-mb {cap:g}: it is an option of {', '.join(BUCKETED)}, but "
            f"--implementation is {settings.implementation}; take one of them, or leave it out"
        )


def _warmup(settings: TrainSettings) -> None:
    if settings.warmup_steps and settings.learning_rate_rule == "none":
        raise UsageError(
            f"--lr-warmup {settings.warmup_steps}: the rate rises from --lr to the scaled one, and "
            "with --lr-scaling none they are the same; add --lr-scaling linear or sqrt"
        )


def _shares(settings: TrainSettings) -> None:
    if settings.shares and settings.balance != "equal":
        raise UsageError(
            f"got --shares and --balance {settings.balance}, which sets the shares; give one of "
            "them"
        )
