"""From the typed options of `dpbench sweep` to a SweepSpec, with every check on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dpbench import architecture
from dpbench.cli.effort import Effort, noise_steps, parse_effort
from dpbench.cli.values import (
    comma_list,
    duration_seconds,
    integer,
    known_name,
    positive_float,
    positive_int,
)
from dpbench.data.registry import DATASETS
from dpbench.errors import UsageError
from dpbench.specs import (
    IMPLEMENTATIONS,
    OPTIMIZERS,
    PROCESS_GROUP_BACKENDS,
    SCALINGS,
    Scaling,
    SweepSpec,
    WorkloadSpec,
)

STAGED_BACKEND = "cpu"
"""How other tools call gradients that are staged through the host."""
MOST_REPLICAS = 4096


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
    arch: str
    data: str | None
    optimizer: str
    lr: str
    accumulate: str
    sync_every: str | None
    sync_backend: str | None
    threads: str | None
    oversubscribe: bool
    seed: str
    order_seed: str | None
    time_limit: str


class Resources(Protocol):
    """What the checks must know of the machine."""

    @property
    def cores(self) -> int: ...

    @property
    def has_cuda(self) -> bool: ...

    @property
    def gpu_count(self) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options that are one number or one name; None where left to the machine or the data."""

    warmup_steps: int
    effort: Effort
    target_loss: float | None
    phase_steps: int
    noise_steps: int
    trace_steps: int
    accumulation_steps: int
    sync_every: int | None
    optimizer: str
    learning_rate: float
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
    scaling: Scaling
    settings: Settings
    notes: tuple[str, ...]


def parse(options: SweepOptions) -> ParsedOptions:
    """Checks every token; raises UsageError. Looks at nothing but the text."""
    notes: list[str] = []
    count, ids = _parse_gpus(options.gpus)
    parsed = ParsedOptions(
        options=options,
        implementations=comma_list(
            "--implementations",
            options.implementations,
            lambda option, token: known_name(option, token, IMPLEMENTATIONS),
            notes,
        ),
        backends=_parse_backends(options, notes),
        gpu_count=count,
        gpu_ids=ids,
        group_sizes=(
            None
            if options.group_sizes is None
            else comma_list("--group-sizes", options.group_sizes, positive_int, notes)
        ),
        batch_sizes=comma_list("--batch-sizes", options.batch_sizes, positive_int, notes),
        scaling="strong"
        if known_name("--scaling", options.scaling, SCALINGS) == "strong"
        else "weak",
        settings=_parse_settings(options, notes),
        notes=tuple(notes),
    )
    _check_backends(parsed)
    _check_sync_every(parsed)
    architecture.check(options.arch)
    return parsed


def build(parsed: ParsedOptions, machine: Resources) -> tuple[SweepSpec, tuple[str, ...]]:
    """The sweep for this machine, and the notes that the user must see."""
    options = parsed.options
    notes = list(parsed.notes)
    devices = _devices(parsed, machine, notes)
    group_sizes = parsed.group_sizes or tuple(range(1, len(devices) + 1))
    _check_group_sizes(group_sizes, devices, options)
    _check_strong_scaling(parsed, group_sizes)
    settings = parsed.settings
    spec = SweepSpec(
        workload=WorkloadSpec(
            architecture=options.arch,
            dataset=_dataset(parsed, notes),
            optimizer=settings.optimizer,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
        ),
        implementations=parsed.implementations,
        backends=parsed.backends or (("nccl",) if machine.has_cuda else ("gloo",)),
        group_sizes=group_sizes,
        batch_sizes=parsed.batch_sizes,
        devices=devices,
        warmup_steps=settings.warmup_steps,
        timed_steps=settings.effort.timed_steps,
        steps_grow=settings.effort.steps_grow,
        repetitions=settings.effort.repetitions,
        precision=settings.effort.precision,
        budget_seconds=settings.effort.budget_seconds,
        phase_steps=settings.phase_steps,
        noise_steps=settings.noise_steps,
        trace_steps=settings.trace_steps,
        target_loss=settings.target_loss,
        threads_per_replica=_threads(parsed, machine, max(group_sizes)),
        time_limit_seconds=settings.time_limit_seconds,
        scaling=parsed.scaling,
        accumulation_steps=settings.accumulation_steps,
        sync_every=1 if settings.sync_every is None else settings.sync_every,
        order_seed=settings.order_seed,
    )
    return spec, tuple(notes)


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


def _parse_gpus(text: str | None) -> tuple[int | None, tuple[int, ...] | None]:
    """A count ("2"), or device ids ("0,1"; a single id is written "0,")."""
    if text is None:
        return None, None
    if "," not in text:
        return positive_int("--gpus", text), None
    tokens = text.removesuffix(",").split(",")
    if not all(token.strip() for token in tokens):
        raise UsageError(f"--gpus {text!r} has an empty entry; expected a number or ids as in 0,1")
    ids = [integer("--gpus", token, least=0) for token in tokens]
    for number in ids:
        if ids.count(number) > 1:
            raise UsageError(f"--gpus {text}: device {number} is listed twice; name each once")
    return len(ids), tuple(ids)


def _parse_settings(options: SweepOptions, notes: list[str]) -> Settings:
    order_seed, threads, data = options.order_seed, options.threads, options.data
    every, target = options.sync_every, options.target_loss
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
        accumulation_steps=positive_int("--accumulate", options.accumulate),
        sync_every=None if every is None else positive_int("--sync-every", every),
        optimizer=known_name("--optimizer", options.optimizer, OPTIMIZERS),
        learning_rate=positive_float("--lr", options.lr),
        seed=integer("--seed", options.seed, least=0),
        order_seed=None if order_seed is None else integer("--order-seed", order_seed, least=0),
        threads=None if threads is None else positive_int("--threads", threads),
        time_limit_seconds=duration_seconds("--time-limit", options.time_limit),
        data=None if data is None else known_name("--data", data, DATASETS),
    )


def _devices(parsed: ParsedOptions, machine: Resources, notes: list[str]) -> tuple[str, ...]:
    """A device for each replica of the largest group."""
    oversubscribe = parsed.options.oversubscribe
    if max(parsed.gpu_count or 0, *(parsed.group_sizes or (0,))) > MOST_REPLICAS:
        raise UsageError(
            f"{_asked(parsed)}: more replicas than one machine runs; "
            f"expected at most {MOST_REPLICAS:,}"
        )
    if machine.has_cuda:
        return _cuda_devices(parsed, machine, oversubscribe)
    count = parsed.gpu_count or max(parsed.group_sizes or (machine.cores,))
    if count > machine.cores and not oversubscribe:
        raise UsageError(
            f"{_asked(parsed)}: {count} replicas, but this machine has no CUDA device and "
            f"{machine.cores} cores, and on the CPU a replica is a core; "
            f"expected at most {machine.cores}, or add --oversubscribe"
        )
    if parsed.gpu_ids and max(parsed.gpu_ids) >= machine.cores and not oversubscribe:
        raise UsageError(
            f"--gpus: no device {max(parsed.gpu_ids)}; this machine has no CUDA device and "
            f"{machine.cores} cores (0 to {machine.cores - 1})"
        )
    if parsed.gpu_count is not None:
        noun = "replica" if count == 1 else "replicas"
        notes.append(f"no CUDA device here: --gpus {parsed.options.gpus} means {count} CPU {noun}")
    if count > machine.cores:
        notes.append(f"oversubscribed: {count} replicas share {machine.cores} cores")
    return ("cpu",) * count


def _asked(parsed: ParsedOptions) -> str:
    """The option that asks for the largest number of replicas, as it was typed."""
    options = parsed.options
    return (
        f"--group-sizes {options.group_sizes}" if options.gpus is None else f"--gpus {options.gpus}"
    )


def _cuda_devices(
    parsed: ParsedOptions, machine: Resources, oversubscribe: bool
) -> tuple[str, ...]:
    if parsed.gpu_ids is not None:
        absent = [number for number in parsed.gpu_ids if number >= machine.gpu_count]
        if absent:
            raise UsageError(
                f"--gpus: no GPU {absent[0]}; this machine has {machine.gpu_count} "
                f"(0 to {machine.gpu_count - 1})"
            )
        return tuple(f"cuda:{number}" for number in parsed.gpu_ids)
    count = parsed.gpu_count or max(parsed.group_sizes or (machine.gpu_count,))
    if count > machine.gpu_count and not oversubscribe:
        raise UsageError(
            f"{_asked(parsed)}: this machine has {machine.gpu_count} GPUs; expected at most "
            f"{machine.gpu_count}, or share them with --oversubscribe (not with nccl)"
        )
    return tuple(f"cuda:{number % machine.gpu_count}" for number in range(count))


def _check_group_sizes(
    group_sizes: tuple[int, ...], devices: tuple[str, ...], options: SweepOptions
) -> None:
    for size in group_sizes:
        if size > len(devices):
            raise UsageError(
                f"--group-sizes: {size} is above --gpus {options.gpus}; "
                f"expected at most {len(devices)}"
            )


def _check_strong_scaling(parsed: ParsedOptions, group_sizes: tuple[int, ...]) -> None:
    if parsed.scaling != "strong":
        return
    smallest, largest = min(parsed.batch_sizes), max(group_sizes)
    if smallest < largest:
        raise UsageError(
            f"--batch-sizes: with --scaling strong {smallest} is the global batch, smaller than "
            f"the group of {largest}; expected at least {largest}, a sample for every replica"
        )


def _check_backends(parsed: ParsedOptions) -> None:
    takes_one = any(IMPLEMENTATIONS[name].backend is None for name in parsed.implementations)
    if parsed.backends is not None and not takes_one:
        raise UsageError(
            f"--backends {','.join(parsed.backends)}: none of the implementations "
            f"{', '.join(parsed.implementations)} has a choice of backend; add one that has, such "
            "as ddp, or leave --backends out"
        )


def _check_sync_every(parsed: ParsedOptions) -> None:
    every, names = parsed.settings.sync_every, parsed.implementations
    if every is not None and not any(IMPLEMENTATIONS[name].averages_parameters for name in names):
        raise UsageError(
            f"--sync-every {every}: it is an option of local-sgd, but --implementations are "
            f"{', '.join(names)}; add local-sgd, or leave --sync-every out"
        )
    effort = parsed.settings.effort
    steps = effort.timed_steps
    if every is not None and effort.steps_grow:
        raise UsageError(
            f"--sync-every {every} with --steps auto: the window might not hold whole periods; "
            f"give --steps as a multiple of {every}"
        )
    if every is not None and steps % every:
        raise UsageError(
            f"--sync-every {every} with --steps {steps}: the window would not hold whole periods; "
            f"expected --steps to be a multiple of {every}"
        )


def _dataset(parsed: ParsedOptions, notes: list[str]) -> str:
    """The dataset; loads the architecture in any case, so that it fails here if it fails."""
    arch = parsed.options.arch
    default = architecture.load(arch).default_dataset
    if parsed.settings.data is not None:
        return parsed.settings.data
    notes.append(f"--data {default}, the default of {arch}")
    return known_name("--data", default, DATASETS)


def _threads(parsed: ParsedOptions, machine: Resources, largest_group: int) -> int:
    """Cores ÷ largest group, the same at every group size: else a speedup is oversubscription."""
    share = max(1, machine.cores // largest_group)
    threads = parsed.settings.threads
    if threads is None:
        return share
    if threads * largest_group > machine.cores and not parsed.options.oversubscribe:
        raise UsageError(
            f"--threads {threads}: {threads} × {largest_group} replicas are more than the "
            f"{machine.cores} cores; expected at most {share}, or add --oversubscribe"
        )
    return threads
