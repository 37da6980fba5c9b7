"""Builds the SweepSpec from checked options, for this machine and its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from dpbench import architecture, units
from dpbench.data.registry import DATASETS, check_fits, is_function, unread_notes
from dpbench.data.user_code import with_files
from dpbench.errors import UsageError
from dpbench.launch.unusable import optimizer_reason
from dpbench.measure.allocator import reason_to_leave
from dpbench.measure.try_out import load_tried, try_dataset, try_step
from dpbench.run.shared_options import LARGEST_BATCH
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.rules import exclusion_notes
from dpbench.run.this_machine import (
    DeviceRequest,
    Host,
    Resources,
    ThisHost,
    devices_for,
    doubling,
    threads_for,
)
from dpbench.specs import AXES, KEEP, WORKLOAD_SETTINGS, SweepSpec, WorkloadSpec
from dpbench.specs.settings import AUTO, Auto
from dpbench.specs.shares import placed
from dpbench.values import known_name


def build_sweep_spec(
    parsed: ParsedOptions,
    machine: Resources,
    hosts: Sequence[Host] = (),
    *,
    data_dir: Path | None = None,
) -> tuple[SweepSpec, tuple[str, ...]]:
    """The sweep for this machine, or for several `hosts`, and the notes that the user must see."""
    if parsed.largest_batch:
        raise UsageError(
            f"--batch-sizes {LARGEST_BATCH}: only dpbench sweep on one node looks for it; expected "
            "a number"
        )
    notes = list(parsed.notes)
    if not hosts:
        devices = devices_for(_device_request(parsed), machine, notes)
        hosts = (ThisHost(machine=machine, devices=devices),)
    offered = tuple(len(host.devices) for host in hosts)
    group_sizes = _group_sizes(parsed, sum(offered))
    _check(parsed, hosts, group_sizes)
    options, amounts = parsed.options, parsed.amounts
    threads = _threads(parsed, hosts, group_sizes)
    axes = replace(parsed.axes, values={**parsed.axes.values, "threads_per_replica": threads})
    workload, *more_workloads = (_workload(parsed, name, notes, data_dir) for name in options.arch)
    spec = SweepSpec(
        workload=workload,
        more_workloads=tuple(more_workloads),
        implementations=options.implementations,
        backends=_backends(parsed, machine),
        group_sizes=group_sizes,
        batch_sizes=parsed.batch_sizes,
        devices=tuple(device for host in hosts for device in host.devices),
        nodes=offered if len(hosts) > 1 else (),
        steps_grow=amounts.steps_grow,
        repetitions=amounts.repetitions,
        precision=amounts.precision,
        budget_seconds=amounts.budget_seconds,
        phase_steps=options.phases,
        trace_steps=options.trace,
        gradient_steps=options.gradient_steps,
        **{name: axes.base(name) for name in AXES if name not in WORKLOAD_SETTINGS},
        variants=axes.variants(),
        exclude=parsed.exclude,
        target_loss=options.target_loss,
        time_limit_seconds=options.time_limit,
    ).with_comparisons
    notes += _allocator_notes(parsed)
    notes += unread_notes(data_dir, (one.dataset for one in spec.workloads))
    return spec, (*notes, *exclusion_notes(spec))


def _allocator_notes(parsed: ParsedOptions) -> list[str]:
    """Notes if freed memory should be kept but cannot be."""
    reason = reason_to_leave() if KEEP in parsed.axes.values["allocator"] else None
    if reason is None:
        return []
    return [f"--allocator {KEEP}: freed memory is left to the C library, as {reason}"]


def _check(parsed: ParsedOptions, hosts: Sequence[Host], group_sizes: tuple[int, ...]) -> None:
    """Raises UsageError for what these hosts cannot run."""
    _check_hosts(hosts, group_sizes)
    _check_strong_scaling(parsed, group_sizes)
    _check_dtypes(parsed.axes.values["dtype"], hosts)
    _check_optimizers(parsed.options.arch, parsed.axes.values["optimizer"])


def _workload(
    parsed: ParsedOptions, named: str, notes: list[str], data_dir: Path | None
) -> WorkloadSpec:
    """The workload of one architecture, the first values of all other axes."""
    options = parsed.options
    base = {name: parsed.axes.base(name) for name in AXES if name in WORKLOAD_SETTINGS}
    workload = WorkloadSpec(
        **{**base, "architecture": named},
        dataset=_dataset(parsed, named, notes),
        learning_rate_rule=options.lr_scaling,
        step=options.step,
    )
    return with_files(workload, data_dir)


def devices_lent(parsed: ParsedOptions, machine: Resources, notes: list[str]) -> tuple[str, ...]:
    """Devices that this host adds to a sweep over several, whose group sizes count all of them."""
    return devices_for(replace(_device_request(parsed), sizes=AUTO), machine, notes)


def _threads(
    parsed: ParsedOptions,
    hosts: Sequence[Host],
    group_sizes: Sequence[int],
) -> tuple[int, ...]:
    """Those that were asked for, which every host has for its part of the largest group; or as many
    as all have. Raises UsageError."""
    offered = [len(host.devices) for host in hosts]

    def shared(threads: int | Auto) -> int:
        counts = placed(max(group_sizes), offered)
        request = replace(_device_request(parsed), threads=threads)
        return min(
            threads_for(request, host.machine, count)
            for host, count in zip(hosts, counts, strict=False)  # the last ones may be idle
        )

    given = parsed.options.threads
    several: tuple[int | Auto, ...] = (AUTO,) if given is AUTO else given
    return tuple(shared(threads) for threads in several)


def _check_hosts(hosts: Sequence[Host], group_sizes: Sequence[int]) -> None:
    """Raises UsageError for replicas that no group could hold together."""
    kinds = [{device.partition(":")[0] for device in host.devices} for host in hosts]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            words = [" and ".join(sorted(one)) for one in (kinds[0], kind)]
            raise UsageError(
                f"node 0 lends {words[0]} devices and node {number} {words[1]} ones; expected the "
                "same kind on all nodes"
            )
    most = sum(len(host.devices) for host in hosts)
    if len(hosts) > 1 and max(group_sizes) > most:
        listed = " + ".join(str(len(host.devices)) for host in hosts)
        raise UsageError(
            f"--group-sizes: {max(group_sizes)} is above the {units.counted(most, 'replica')} of "
            f"all nodes ({listed}); expected at most {most}, or more --gpus on each node"
        )


def _device_request(parsed: ParsedOptions) -> DeviceRequest:
    options = parsed.options
    return DeviceRequest(
        gpus=options.gpus,
        sizes=options.group_sizes,
        threads=AUTO,
        oversubscribe=options.oversubscribe,
    )


def _group_sizes(parsed: ParsedOptions, offered: int) -> tuple[int, ...]:
    sizes = parsed.options.group_sizes
    return doubling(offered) if sizes is AUTO else sizes


def _backends(parsed: ParsedOptions, machine: Resources) -> tuple[str, ...]:
    if parsed.backends is not AUTO:
        return parsed.backends
    return ("nccl",) if machine.has_cuda else ("gloo",)


def _check_strong_scaling(parsed: ParsedOptions, group_sizes: tuple[int, ...]) -> None:
    if "strong" not in parsed.axes.values["scaling"]:
        return
    smallest, largest = min(parsed.batch_sizes), max(group_sizes)
    if smallest < largest:
        raise UsageError(
            f"--batch-sizes: with --scaling strong {smallest} is the global batch, smaller than "
            f"the group of {largest}; expected at least {largest}, a sample for every replica"
        )


def _check_optimizers(architectures: Sequence[str], optimizers: Sequence[str]) -> None:
    for named, optimizer in product(architectures, optimizers):
        if reason := optimizer_reason(named, optimizer):
            whose = f" for --arch {named}" if len(architectures) > 1 else ""
            raise UsageError(f"--optimizers {optimizer}{whose}: {reason}")


def _check_dtypes(dtypes: Sequence[str], hosts: Sequence[Host]) -> None:
    on_cpu = any(device == "cpu" for host in hosts for device in host.devices)
    for dtype in dtypes:
        if on_cpu and dtype in ("f16", "tf32"):
            raise UsageError(
                f"--dtypes {dtype}: it needs a GPU, and the replicas are on the CPU; "
                "expected f32 or bf16 there"
            )


def _dataset(parsed: ParsedOptions, arch: str, notes: list[str]) -> str:
    """The dataset; loads the architecture in any case, so that it fails here if it fails."""
    dataset = parsed.options.data
    loaded = load_tried(arch)
    if parsed.options.step is not None:
        try_step(parsed.options.step, loaded)
    notes += architecture.notes(loaded)
    if dataset is AUTO:
        dataset = known_name("--data", loaded.default_dataset, DATASETS)
        notes.append(f"--data {dataset}, the default of {arch}")
    if is_function(dataset):
        try_dataset(dataset, loaded, seed=parsed.axes.values["seed"][0])
    else:
        check_fits(dataset, loaded, named=arch)
    return dataset
