"""The typed options of `dpbench sweep`, and every check that needs nothing but them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dpbench import architecture
from dpbench.cli.axes import AXES, Axes, parse_axes
from dpbench.cli.devices import parse_gpus
from dpbench.cli.effort import Effort, noise_steps, parse_effort
from dpbench.cli.exclude import parse_exclude
from dpbench.cli.include import OPTION as INCLUDE
from dpbench.cli.include import Include, inclusions, named_implementations
from dpbench.cli.loading import check_included, dataset_name, with_loading
from dpbench.cli.rules import parse_rules
from dpbench.cli.values import (
    comma_list,
    duration_seconds,
    integer,
    known_name,
    positive_float,
    positive_int,
)
from dpbench.errors import UsageError
from dpbench.exclusion import Rule
from dpbench.learning_rate import RULES
from dpbench.specs import SCALINGS, Scaling
from dpbench.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS

LARGEST = "max"
"""In place of a batch size."""
STAGED_BACKEND = "cpu"
"""How other tools call gradients that are staged through the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOptions:
    """The option values as they were typed; None where the option was left out."""

    implementations: str
    backends: str | None
    gpus: str | None
    group_sizes: str | None
    batch_sizes: str
    scaling: str
    warmup: str
    steps: str | None
    repetitions: str | None
    precision: str | None
    budget: str | None
    target_loss: str | None
    phases: str
    noise_scale: str
    trace: str
    gradient_steps: str
    arch: str
    input_shape: str | None
    step: str | None
    data: str | None
    optimizer: str | None
    dtypes: str | None
    compile: str | None
    channels_last: str | None
    checkpoint_activations: str | None
    lr: str
    lr_scaling: str
    accumulate: str | None
    sync_every: str | None
    bucket_cap_mb: str | None
    comm_hook: str | None
    prefetch: str | None
    data_workers: str | None
    exclude: str | None
    include: str | None
    sync_backend: str | None
    threads: str | None
    oversubscribe: bool
    seed: str
    order_seed: str | None
    time_limit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options that are one number or one name; None where left to the machine or the data."""

    warmup_steps: int
    effort: Effort
    target_loss: float | None
    phase_steps: int
    noise_steps: int
    trace_steps: int
    gradient_steps: int
    learning_rate: float
    learning_rate_rule: str
    seed: int
    order_seed: int | None
    threads: int | None
    time_limit_seconds: float
    data: str | None


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """Options that are right in themselves; only the machine and the data may still object."""

    options: SweepOptions
    implementations: tuple[str, ...]
    backends: tuple[str, ...] | None
    gpu_count: int | None
    gpu_ids: tuple[int, ...] | None
    group_sizes: tuple[int, ...] | None
    batch_sizes: tuple[int, ...]
    largest_batch: bool
    """Another one is the largest that fits, which is to be found first."""
    scaling: Scaling
    axes: Axes
    exclude: tuple[Rule, ...]
    include: Include
    settings: Settings
    notes: tuple[str, ...]


def parse(options: SweepOptions) -> ParsedOptions:
    """Checks every token; raises UsageError. Looks at nothing but the text."""
    if options.input_shape is not None:
        named = architecture.with_input_shape(options.arch, options.input_shape)
        options = replace(options, arch=named, input_shape=None)
    notes: list[str] = []
    count, ids = parse_gpus(options.gpus)
    implementations = comma_list(
        "--implementations",
        options.implementations,
        lambda option, token: known_name(option, token, IMPLEMENTATIONS),
        notes,
    )
    batch_sizes = comma_list("--batch-sizes", options.batch_sizes, _batch_size, notes)
    rules = parse_rules(INCLUDE, options.include, notes)
    every = dict.fromkeys((*implementations, *named_implementations(rules)))
    axes = parse_axes({name: getattr(options, name) for name in AXES}, every, notes)
    axes = with_loading(axes, dataset_name(options.data), options.prefetch, notes)
    parsed = ParsedOptions(
        options=options,
        implementations=implementations,
        backends=_parse_backends(options, notes),
        gpu_count=count,
        gpu_ids=ids,
        group_sizes=(
            None
            if options.group_sizes is None
            else comma_list("--group-sizes", options.group_sizes, positive_int, notes)
        ),
        batch_sizes=tuple(size for size in batch_sizes if size is not None),
        largest_batch=None in batch_sizes,
        scaling="strong"
        if known_name("--scaling", options.scaling, SCALINGS) == "strong"
        else "weak",
        axes=axes,
        exclude=parse_exclude(options.exclude, notes),
        include=inclusions(rules, implementations, axes),
        settings=_parse_settings(options, notes),
        notes=tuple(notes),
    )
    _check_backends(parsed, every)
    _check_sync_every(parsed)
    check_included(axes, parsed.settings.data, parsed.include.items())
    architecture.check(options.arch)
    _check_step(parsed)
    return parsed


def _batch_size(option: str, token: str) -> int | None:
    return None if token.strip() == LARGEST else positive_int(option, token)


def _parse_backends(options: SweepOptions, notes: list[str]) -> tuple[str, ...] | None:
    if options.backends is not None and options.sync_backend is not None:
        raise UsageError(
            f"got --backends {options.backends} and --sync-backend {options.sync_backend}, which "
            "are two names of one option; give one of them"
        )
    name = "--backends" if options.sync_backend is None else "--sync-backend"
    text = options.backends if options.sync_backend is None else options.sync_backend
    if text is None:
        return None

    def backend(option: str, token: str) -> str:
        if token == STAGED_BACKEND:
            notes.append(f"{option} {token} means shm: ranks reduce through the host's memory")
            return "shm"
        return known_name(option, token, PROCESS_GROUP_BACKENDS)

    return comma_list(name, text, backend, notes)


def _parse_settings(options: SweepOptions, notes: list[str]) -> Settings:
    order_seed, threads, data = options.order_seed, options.threads, options.data
    target = options.target_loss
    return Settings(
        warmup_steps=integer("--warmup", options.warmup, least=0),
        effort=parse_effort(
            steps=options.steps,
            repetitions=options.repetitions,
            precision=options.precision,
            budget=options.budget,
            notes=notes,
        ),
        target_loss=None if target is None else positive_float("--target-loss", target),
        phase_steps=integer("--phases", options.phases, least=0),
        noise_steps=noise_steps(options.noise_scale),
        trace_steps=integer("--trace", options.trace, least=0),
        gradient_steps=integer("--gradient-steps", options.gradient_steps, least=0),
        learning_rate=positive_float("--lr", options.lr),
        learning_rate_rule=known_name("--lr-scaling", options.lr_scaling, RULES),
        seed=integer("--seed", options.seed, least=0),
        order_seed=None if order_seed is None else integer("--order-seed", order_seed, least=0),
        threads=None if threads is None else positive_int("--threads", threads),
        time_limit_seconds=duration_seconds("--time-limit", options.time_limit),
        data=dataset_name(data),
    )


def _check_backends(parsed: ParsedOptions, implementations: Collection[str]) -> None:
    takes_one = any(IMPLEMENTATIONS[name].backend is None for name in implementations)
    if parsed.backends is not None and not takes_one:
        raise UsageError(
            f"--backends {','.join(parsed.backends)}: none of the implementations "
            f"{', '.join(implementations)} has a choice of backend; add one that has, such "
            "as ddp, or leave --backends out"
        )


def _check_step(parsed: ParsedOptions) -> None:
    step = parsed.options.step
    if step is None:
        return
    architecture.check_function(step, "step")
    if parsed.settings.noise_steps:
        raise UsageError(
            f"--step {step} with --noise-scale: the noise is that of the plain mean loss, which a "
            "step need not follow; leave one of them out"
        )


def _check_sync_every(parsed: ParsedOptions) -> None:
    effort = parsed.settings.effort
    steps = effort.timed_steps
    asked = [(f"--sync-every {every}", every) for every in parsed.axes.values["sync_every"]]
    asked += [(rule, one.settings.sync_every or 1) for rule, one in parsed.include.items()]
    for option, every in asked:
        if every > 1 and effort.steps_grow:
            raise UsageError(
                f"{option} with --steps auto: the window might not hold whole periods; "
                f"give --steps as a multiple of {every}"
            )
        if steps % every:
            raise UsageError(
                f"{option} with --steps {steps}: the window would not hold whole "
                f"periods; expected --steps to be a multiple of {every}"
            )
