"""Builds the SweepSpec from checked options, for the nodes that measure it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench import units
from dpbench.architecture import make_importable
from dpbench.architecture.naming import with_files
from dpbench.data.registry import unread_notes
from dpbench.errors import UsageError
from dpbench.launch.preflight import preflight
from dpbench.messages import option_words
from dpbench.options.shared import MAX_WORD
from dpbench.options.sweep import DEFAULT_STEPS, SweepOptions
from dpbench.run.this_machine import default_group_sizes, threads_for
from dpbench.specs import Configuration, SweepSpec, WorkloadSpec
from dpbench.specs.nodes import fill_nodes
from dpbench.specs.sweep import configurations
from dpbench.specs.traits import INDEPENDENT, OWN_BACKEND, SINGLE
from dpbench.specs.workload import WORKLOAD_FIELDS

if TYPE_CHECKING:
    from dpbench.launch.cluster import Node


def build_sweep_spec(options: SweepOptions, nodes: Sequence[Node]) -> tuple[SweepSpec, list[str]]:
    """The sweep of these options on the nodes, of which the first plans and records; and notes for
    the user.

    Raises UsageError for what the nodes cannot run.
    """
    group_sizes = _group_sizes(options, nodes)
    if options.window_seconds and len(nodes) > 1:  # the orders of other nodes name no steps
        options = options.model_copy(update={"steps": (DEFAULT_STEPS,)})
    settings = options.settings
    settings["threads"] = tuple(
        _threads(options, nodes, max(group_sizes), each) for each in settings["threads"]
    )
    first = {field: values[0] for field, values in settings.items()}
    of_workload = {field: first.pop(field) for field in settings if field in WORKLOAD_FIELDS}
    workloads, notes = _workloads(options, of_workload)
    notes += unread_notes(options.data_dir, [each.dataset for each in workloads])
    devices = tuple(device for node in nodes for device in node.devices)
    base = Configuration(
        workload=workloads[0],
        implementation=SINGLE,
        backend="none",
        group_size=1,
        devices=devices[:1],
        window_seconds=options.window_seconds,
        **first,
    )
    usual_backend = "nccl" if nodes[0].machine.gpus else "gloo"
    if options.subject == "script":
        usual_backend = OWN_BACKEND
    spec = SweepSpec(
        base=base,
        workloads=tuple(workloads),
        # Every speedup needs the first.
        implementations=tuple(dict.fromkeys((SINGLE, *options.measured_implementations))),
        largest_group_only=() if options.implementations else (INDEPENDENT,),
        backends=options.backends or (usual_backend,),
        group_sizes=group_sizes,
        devices=devices,
        devices_by_node=tuple(len(node.devices) for node in nodes) if len(nodes) > 1 else (),
        repetitions=options.repetitions,
        axes={field: values for field, values in settings.items() if len(values) > 1},
        time_limit_seconds=options.time_limit,
        stop_after_failure=options.stop_after_failure,
    )
    try:  # as the ranks will
        _ = [configuration.scaled_lr for configuration in configurations(spec)]
    except ValueError as error:
        raise UsageError(f"{option_words('lr_scaling', options.lr_scaling)}: {error}") from None
    return spec, notes


def _group_sizes(options: SweepOptions, nodes: Sequence[Node]) -> tuple[int, ...]:
    """The group sizes that are asked for, or the usual ones.

    Raises UsageError for groups and batches that these nodes do not have.
    """
    most = sum(len(node.devices) for node in nodes)
    usual = default_group_sizes(most)
    # At group size 1 SINGLE is measured in any case.
    asked = options.group_sizes or usual[1:] or usual
    sizes = tuple(dict.fromkeys(most if size == MAX_WORD else int(size) for size in asked))
    smallest, largest = min(options.batch_sizes), max(sizes)
    if largest > most:
        listed = " + ".join(str(len(node.devices)) for node in nodes)
        where = f"all nodes ({listed})" if len(nodes) > 1 else "this machine"
        raise UsageError(
            f"--group-sizes: {largest} is above the {units.counted(most, 'replica')} of {where}; "
            f"expected at most {most}, or more --gpus"
        )
    if "strong" in options.scaling and smallest < largest:
        raise UsageError(
            f"--batch-sizes: with --scaling strong {smallest} is the global batch, smaller than "
            f"the group of {largest}; expected at least {largest}, a sample for every replica"
        )
    return sizes


def _threads(
    options: SweepOptions, nodes: Sequence[Node], largest_group: int, threads: int | None
) -> int:
    """Threads per replica: as asked for, or as many as every node has for its part of the largest
    group. Raises UsageError for more than that."""
    counts = fill_nodes(largest_group, [len(node.devices) for node in nodes])
    return min(
        threads_for(threads, node.machine.cores, count, oversubscribe=options.oversubscribe)
        for node, count in zip(nodes, counts, strict=False)  # the last ones may be idle
    )


def _workloads(
    options: SweepOptions, settings: Mapping[str, Any]
) -> tuple[list[WorkloadSpec], list[str]]:
    """The workload of the script, or of each architecture, with the first values of all axes; and
    notes on them.

    The first step of an architecture is taken here, so that errors of the user's code are known
    before any trial. Raises UsageError for them.
    """
    if script := options.script_and_arguments:
        _require_script(script)
        named = script[1] if script[0] == "-m" else Path(script[0]).name
        workload = WorkloadSpec(architecture=named, dataset="", script=script, **settings)
        return [with_files(workload)], []
    make_importable(*options.arch, options.data)
    workloads, notes = [], list[str]()
    for named in options.arch:
        tried = preflight(named, dataset=options.data, seed=options.seed[0])
        notes += tried.notes
        workload = WorkloadSpec(
            architecture=named, dataset=tried.dataset, lr_scaling=options.lr_scaling, **settings
        )
        workloads.append(with_files(workload))
    return workloads, notes


def _require_script(script: Sequence[str]) -> None:
    """Raise UsageError if there is no such script or module, or the file makes a model
    instead. Nothing of it runs here."""
    if script[0] != "-m":
        if not Path(script[0]).is_file():
            raise UsageError(f"no file {script[0]} here ({Path.cwd()})")
        text = Path(script[0]).read_text(encoding="utf-8", errors="replace")
        if "\ndef make(" in text and "optim" not in text:
            raise UsageError(
                f"{script[0]} makes a model and trains nothing; expected a training script; to "
                f"measure the model: dpbench sweep --arch {script[0]}:make"
            )
        return
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        if find_spec(script[1]) is None:
            raise UsageError(f"-m {script[1]}: no such module")
    except ModuleNotFoundError as error:
        raise UsageError(f"-m {script[1]}: {error}") from None
    finally:
        sys.path.remove(str(Path.cwd()))
