"""Builds the SweepSpec from checked options, for this machine and its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from dpbench import architecture, units
from dpbench.data.registry import unread_notes
from dpbench.data.user_code import with_files
from dpbench.errors import UsageError
from dpbench.launch.preflight import preflight
from dpbench.launch.sparse import optimizer_reason
from dpbench.options.shared import LARGEST
from dpbench.options.sweep import STEPS, WINDOW_SECONDS, SweepOptions
from dpbench.run.sweep.script import with_defaults, workload_of
from dpbench.run.this_machine import (
    Host,
    default_group_sizes,
    devices_for,
    threads_for,
)
from dpbench.specs import (
    AXES,
    WORKLOAD_SETTINGS,
    SweepSpec,
    WorkloadSpec,
)
from dpbench.specs.shares import placed
from dpbench.specs.traits import INDEPENDENT

if TYPE_CHECKING:
    from dpbench.launch.machine import Machine
    from dpbench.launch.nodes import Node


def build_sweep_spec(
    options: SweepOptions,
    machine: Machine,
    hosts: Sequence[Host | Node] = (),
) -> tuple[SweepSpec, tuple[str, ...]]:
    """The sweep for this machine, or for several `hosts`, and the notes that the user must see."""
    if options.searches_batch:
        raise UsageError(
            f"--batch-sizes {LARGEST}: only dpbench sweep on one node looks for it; expected "
            "a number"
        )
    if script := options.script_words:
        options = with_defaults(options)
    architecture.make_importable(*options.arch, options.step, options.data)
    for name in () if script else options.arch:
        architecture.check_exists(name)
    if options.step is not None:
        architecture.check_exists(options.step, "step")
    if options.has_own_data:
        architecture.check_exists(str(options.data), "dataset")
    if len(hosts) > 1 and options.fills_window:  # the orders of other hosts name no steps
        options = options.model_copy(update={"steps": (STEPS,)})
    notes: list[str] = []
    asked = options.group_sizes
    numbers = tuple(size for size in asked or () if isinstance(size, int))
    if not hosts:
        devices = devices_for(
            machine,
            options.gpus,
            numbers if numbers == asked else None,
            notes,
            oversubscribe=options.oversubscribe,
        )
        hosts = (Host(machine=machine, devices=devices),)
    offered = tuple(len(host.devices) for host in hosts)
    most = sum(offered)
    group_sizes = default_group_sizes(most)
    if asked is not None:
        group_sizes = tuple(dict.fromkeys(most if size == LARGEST else int(size) for size in asked))
    _check(options, hosts, group_sizes)
    decided = {
        "timed_steps": options.timed_steps,
        "prefetch": options.loading,
        "threads_per_replica": _threads(options, hosts, group_sizes),
    }
    axes: dict[str, tuple[Any, ...]] = {
        field: decided.get(field) or getattr(options, axis.name) for field, axis in AXES.items()
    }
    base = {field: values[0] for field, values in axes.items()}
    of_workload = {name: value for name, value in base.items() if name in WORKLOAD_SETTINGS}
    workload, *more_workloads = (
        [workload_of(script, of_workload)]
        if script
        else [_workload(options, of_workload, name, notes) for name in options.arch]
    )
    spec = SweepSpec(
        workload=workload,
        more_workloads=tuple(more_workloads),
        implementations=options.measured_implementations,
        largest_group_only=() if options.implementations else (INDEPENDENT,),
        backends=options.backends or (("nccl",) if machine.has_cuda else ("gloo",)),
        group_sizes=group_sizes,
        batch_sizes=options.known_batch_sizes,
        devices=tuple(device for host in hosts for device in host.devices),
        nodes=offered if len(hosts) > 1 else (),
        window_seconds=WINDOW_SECONDS if options.fills_window else None,
        repetitions=options.repetitions,
        **{name: value for name, value in base.items() if name not in WORKLOAD_SETTINGS},
        axes={field: values for field, values in axes.items() if len(values) > 1},
        measures_baseline=options.single,
        time_limit_seconds=options.time_limit,
    )
    notes += unread_notes(options.data_dir, (one.dataset for one in spec.workloads))
    return spec, tuple(notes)


def _check(
    options: SweepOptions, hosts: Sequence[Host | Node], group_sizes: tuple[int, ...]
) -> None:
    """Raise UsageError for what these hosts cannot run."""
    kinds = [{device.partition(":")[0] for device in host.devices} for host in hosts]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            words = [" and ".join(sorted(one)) for one in (kinds[0], kind)]
            raise UsageError(
                f"node 0 has {words[0]} devices and node {number} {words[1]} ones; expected the "
                "same kind on all nodes"
            )
    most = sum(len(host.devices) for host in hosts)
    if max(group_sizes) > most:
        listed = " + ".join(str(len(host.devices)) for host in hosts)
        where = f"all nodes ({listed})" if len(hosts) > 1 else "this machine"
        raise UsageError(
            f"--group-sizes: {max(group_sizes)} is above the {units.counted(most, 'replica')} of "
            f"{where}; expected at most {most}, or more --gpus"
        )
    smallest, largest = min(options.known_batch_sizes), max(group_sizes)
    if "strong" in options.scaling and smallest < largest:
        raise UsageError(
            f"--batch-sizes: with --scaling strong {smallest} is the global batch, smaller than "
            f"the group of {largest}; expected at least {largest}, a sample for every replica"
        )
    for dtype in options.dtypes:
        if "cpu" in kinds[0] and dtype in ("f16", "tf32"):
            raise UsageError(
                f"--dtypes {dtype}: it needs a GPU, and the replicas are on the CPU; "
                "expected f32 or bf16 there"
            )
    for named, optimizer in product(options.arch, options.optimizer):
        if reason := optimizer_reason(named, optimizer):
            whose = f" for --arch {named}" if len(options.arch) > 1 else ""
            raise UsageError(f"--optimizer {optimizer}{whose}: {reason}")


def _workload(
    options: SweepOptions, settings: Mapping[str, Any], named: str, notes: list[str]
) -> WorkloadSpec:
    """The workload of one architecture, the first values of all other axes. Its first step is
    taken here, so that errors of the user's code are known before any trial."""
    tried = preflight(named, dataset=options.data, step=options.step, seed=options.seed[0])
    notes += tried.notes
    workload = WorkloadSpec(
        **{**settings, "architecture": named},
        dataset=tried.dataset,
        learning_rate_rule=options.lr_scaling,
        step=options.step,
    )
    return with_files(workload)


def _threads(
    options: SweepOptions,
    hosts: Sequence[Host | Node],
    group_sizes: Sequence[int],
) -> tuple[int, ...]:
    """Threads per replica: as asked for, or as many as every host has for its part of the largest
    group. Raises UsageError for more than that."""
    offered = [len(host.devices) for host in hosts]

    def shared(threads: int | None) -> int:
        counts = placed(max(group_sizes), offered)
        return min(
            threads_for(threads, host.machine.cores, count, oversubscribe=options.oversubscribe)
            for host, count in zip(hosts, counts, strict=False)  # the last ones may be idle
        )

    several: tuple[int | None, ...] = options.threads or (None,)
    return tuple(shared(threads) for threads in several)
