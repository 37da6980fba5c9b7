"""The typed options of `dpbench train`, and every check that needs nothing but them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, get_args

from dpbench import architecture
from dpbench.cli.devices import GpuNumbers
from dpbench.cli.shared_options import STAGED_BACKEND
from dpbench.data.registry import DATASETS, is_function
from dpbench.errors import UsageError
from dpbench.learning_rate import RULES
from dpbench.settings import AUTO, Auto
from dpbench.specs import OPTIMIZERS, SETTINGS, WorkloadSpec
from dpbench.training_spec import Balance, Evaluation, LastWindow, TrainingRun
from dpbench.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.values import (
    duration_seconds,
    integer,
    known_name,
    positive_float,
    positive_int,
)

BALANCES: dict[str, Balance] = {name: name for name in get_args(Balance)}
EVALUATIONS: dict[str, Evaluation] = {name: name for name in get_args(Evaluation)}
LAST_WINDOWS: dict[str, LastWindow] = {name: name for name in get_args(LastWindow)}
SHORTEST_TIMEOUT_SECONDS = 0.1
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """The option values as they were typed; None where the option was left out.

    They are what a configuration file may hold.
    """

    implementation: str
    backend: str | None
    sync_backend: str | None
    gpus: str | None
    threads: str | None
    oversubscribe: bool
    arch: str
    input_shape: str | None
    data: str | None
    data_dir: str | None
    limit_train: str | None
    epochs: str | None
    max_steps: str | None
    batch_size: str
    accumulate: str
    last_window: str
    optimizer: str
    lr: str
    gamma: str | None
    lr_scaling: str
    lr_warmup: str
    dtype: str
    compile: str
    channels_last: str
    checkpoint_activations: str
    max_norm: str | None
    sync_every: str | None
    bucket_cap_mb: str | None
    balance: str
    shares: str | None
    seed: str
    prefetch: str
    evaluate: str | None
    no_eval: bool
    log_interval: str
    checkpoint_every: str | None
    max_checkpoints: str
    check_sync_every: str | None
    timeout: str
    debug: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """Options that are right one by one; None where left to the machine, the data or a default."""

    implementation: str
    backend: str | None
    gpus: int | tuple[int, ...] | Auto
    threads: int | Auto
    oversubscribe: bool
    arch: str
    data: str | None
    data_dir: str | None
    limit_train: int | None
    epochs: int | None
    batch_size: int
    accumulation_steps: int
    last_window: LastWindow
    optimizer: str
    learning_rate: float
    gamma: float | None
    learning_rate_rule: str
    warmup_steps: int
    dtype: str
    compile: str
    channels_last: bool
    checkpoint_activations: bool
    max_norm: float | None
    sync_every: int | None
    bucket_cap_mb: float | None
    balance: Balance
    shares: tuple[float, ...]
    seed: int
    run: TrainingRun
    notes: tuple[str, ...]

    def workload(self, dataset: str) -> WorkloadSpec:
        return WorkloadSpec(
            architecture=self.arch,
            dataset=dataset,
            optimizer=self.optimizer,
            dtype=self.dtype,
            compile=self.compile,
            channels_last=self.channels_last,
            checkpoint_activations=self.checkpoint_activations,
            learning_rate=self.learning_rate,
            learning_rate_rule=self.learning_rate_rule,
            seed=self.seed,
        )


def parse(options: TrainOptions) -> TrainSettings:
    """Reads every value by itself; raises UsageError. Looks at nothing but the text."""
    notes: list[str] = []
    shape = options.input_shape
    arch = options.arch if shape is None else architecture.with_input_shape(options.arch, shape)
    architecture.check(arch)
    threads, data, limit = options.threads, options.data, options.limit_train
    epochs, gamma = options.epochs, options.gamma
    norm, every, cap = options.max_norm, options.sync_every, options.bucket_cap_mb
    return TrainSettings(
        implementation=known_name("--implementation", options.implementation, IMPLEMENTATIONS),
        backend=_backend(options, notes),
        gpus=AUTO if options.gpus is None else GpuNumbers().parse("--gpus", options.gpus),
        threads=AUTO if threads is None else positive_int("--threads", threads),
        oversubscribe=options.oversubscribe,
        arch=arch,
        data=None if data is None else _dataset(data),
        data_dir=options.data_dir,
        limit_train=None if limit is None else positive_int("--limit-train", limit),
        epochs=None if epochs is None else positive_int("--epochs", epochs),
        batch_size=positive_int("--batch-size", options.batch_size),
        accumulation_steps=positive_int("--accumulate", options.accumulate),
        last_window=_named("--last-window", options.last_window, LAST_WINDOWS),
        optimizer=known_name("--optimizer", options.optimizer, OPTIMIZERS),
        learning_rate=positive_float("--lr", options.lr),
        gamma=None if gamma is None else positive_float("--gamma", gamma),
        learning_rate_rule=known_name("--lr-scaling", options.lr_scaling, RULES),
        warmup_steps=integer("--lr-warmup", options.lr_warmup, least=0),
        dtype=SETTINGS["dtype"].parse("--dtype", options.dtype),
        compile=SETTINGS["compile"].parse("--compile", options.compile),
        channels_last=SETTINGS["channels_last"].parse("--channels-last", options.channels_last),
        checkpoint_activations=SETTINGS["checkpoint_activations"].parse(
            "--checkpoint-activations", options.checkpoint_activations
        ),
        max_norm=None if norm is None else positive_float("--max-norm", norm),
        sync_every=None if every is None else positive_int("--sync-every", every),
        bucket_cap_mb=None
        if cap is None
        else SETTINGS["bucket_cap_mb"].kind.parse("--bucket-cap-mb", cap),
        balance=_named("--balance", options.balance, BALANCES),
        shares=_shares(options.shares),
        seed=integer("--seed", options.seed, least=0),
        run=_run(options),
        notes=tuple(notes),
    )


def _named(option: str, token: str, known: Mapping[str, T]) -> T:
    return known[known_name(option, token, known)]


def _dataset(text: str) -> str:
    if is_function(text):
        raise UsageError(
            f"--data {text}: a dataset of your own is for dpbench sweep; expected one of "
            f"{', '.join(DATASETS)}"
        )
    return known_name("--data", text, DATASETS)


def _backend(options: TrainOptions, notes: list[str]) -> str | None:
    if options.backend is not None and options.sync_backend is not None:
        raise UsageError(
            f"got --backend {options.backend} and --sync-backend {options.sync_backend}, which "
            "are two names of one option; give one of them"
        )
    option = "--backend" if options.sync_backend is None else "--sync-backend"
    token = options.backend if options.sync_backend is None else options.sync_backend
    if token is None:
        return None
    if token.strip() == STAGED_BACKEND:
        notes.append(f"{option} {STAGED_BACKEND} means shm: ranks reduce through the host's memory")
        return "shm"
    return known_name(option, token, PROCESS_GROUP_BACKENDS)


def _shares(text: str | None) -> tuple[float, ...]:
    """Reads "2,1"; () where the option was left out."""
    if text is None:
        return ()
    if not text.strip():
        raise UsageError("--shares is empty; expected one number for each process, as in 2,1")
    return tuple(positive_float("--shares", token) for token in text.split(","))


def _run(options: TrainOptions) -> TrainingRun:
    every, check, most = options.checkpoint_every, options.check_sync_every, options.max_steps
    return TrainingRun(
        evaluation=_evaluation(options),
        max_steps=None if most is None else positive_int("--max-steps", most),
        log_interval=positive_int("--log-interval", options.log_interval),
        checkpoint_every=None if every is None else positive_int("--checkpoint-every", every),
        max_checkpoints=positive_int("--max-checkpoints", options.max_checkpoints),
        prefetch=integer("--prefetch", options.prefetch, least=0),
        check_sync_every=None if check is None else positive_int("--check-sync-every", check),
        timeout_seconds=_timeout(options.timeout),
        debug=options.debug,
    )


def _evaluation(options: TrainOptions) -> Evaluation:
    if not options.no_eval:
        return _named("--evaluate", options.evaluate or "sharded", EVALUATIONS)
    if options.evaluate not in (None, "off"):
        raise UsageError(
            f"got --evaluate {options.evaluate} and --no-eval, which means --evaluate off; give "
            "one of them"
        )
    return "off"


def _timeout(token: str) -> float:
    seconds = duration_seconds("--timeout", token)
    if seconds < SHORTEST_TIMEOUT_SECONDS:
        raise UsageError(
            f"--timeout: {token} is shorter than ranks need to meet; "
            f"expected at least {SHORTEST_TIMEOUT_SECONDS:g} s"
        )
    return seconds
