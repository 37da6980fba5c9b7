"""Builds the SweepSpec from checked options, for the nodes that measure it."""

from __future__ import annotations

import ast
import math
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench import units
from dpbench.architecture import make_importable
from dpbench.architecture.naming import with_files
from dpbench.data.registry import is_function, note_unread
from dpbench.errors import UsageError, no_file
from dpbench.launch.preflight import preflight
from dpbench.messages import option_words, say
from dpbench.options.model import OptionError
from dpbench.options.shared import (
    DEFAULT_BATCH_SIZES,
    DEFAULT_SCRIPT_WARMUP,
    MAX_WORD,
    MIN_SCRIPT_STEPS,
)
from dpbench.options.sweep import DEFAULT_STEPS, DEFAULT_WARMUP, SweepOptions
from dpbench.run.this_machine import default_group_sizes, threads_for
from dpbench.specs import AXES, GRID, SweepSpec, WorkloadSpec
from dpbench.specs.nodes import fill_nodes
from dpbench.specs.traits import INDEPENDENT, OWN_BACKEND, SINGLE, usual_backend

if TYPE_CHECKING:
    from dpbench.launch.cluster import Node

WINDOW_SECONDS = 1.0
"""Time that a window fills where --steps is not given."""
SCRIPT_WINDOW_SECONDS = 0.5
"""The same for a script as it is. Its start takes far longer, so that more runs tell more than
longer ones."""
MIN_FILLING_STEPS = 12
"""Fewest steps of a window that fills a time: SEGMENTS of three."""


def build_sweep_spec(
    options: SweepOptions, nodes: Sequence[Node], *, only_speeds: bool = False
) -> SweepSpec:
    """The sweep of these options on the nodes, of which the first plans and records.

    With `only_speeds`, what speedups and explanations need is left out: `single` unless it is asked
    for, steps without synchronization and the phases of a step. Says what is to be known of models
    and data, and raises UsageError for what the nodes cannot run.
    """
    group_sizes = _group_sizes(options, nodes)
    window_seconds = _window_seconds(options, nodes)
    axes = _axes(options, nodes, max(group_sizes), fills_time=window_seconds is not None)
    _require_whole_parts(options, axes, max(group_sizes))
    workloads = _workloads(options)
    note_unread(options.data_dir, [workload.dataset for workload in workloads])
    asked = options.measured_implementations
    backend = OWN_BACKEND if options.script is not None else usual_backend(nodes[0].devices[0])
    has_choice = options.backends is None and max(group_sizes) > 1 and len(nodes) == 1
    if backend == "gloo" and has_choice and not only_speeds:
        say("--backends gloo, the default on CPU cores; try --backends gloo,shm, too")
    spec = SweepSpec(
        # Every speedup needs SINGLE.
        implementations=asked if only_speeds else tuple(dict.fromkeys((SINGLE, *asked))),
        backends=options.backends or (backend,),
        group_sizes=group_sizes,
        largest_group_only=() if options.implementations else (INDEPENDENT,),
        axes=axes,
        workloads=workloads,
        devices=tuple(device for node in nodes for device in node.devices),
        devices_by_node=tuple(len(node.devices) for node in nodes) if len(nodes) > 1 else (),
        is_instrumented=not only_speeds,
        window_seconds=window_seconds,
        repetitions=options.repetitions,
        time_limit_seconds=options.time_limit,
        stop_after_failure=options.stop_after_failure,
    )
    try:  # as the ranks will
        _ = [configuration.scaled_lr for configuration in spec.configurations]
    except ValueError as error:
        raise UsageError(f"{option_words('lr_scaling', options.lr_scaling)}: {error}") from None
    return spec


def _group_sizes(options: SweepOptions, nodes: Sequence[Node]) -> tuple[int, ...]:
    """The group sizes that are asked for, or the usual ones.

    Raises UsageError for groups that these nodes do not have.
    """
    most = sum(len(node.devices) for node in nodes)
    usual = default_group_sizes(most)
    # At group size 1 SINGLE is measured in any case.
    asked = options.group_sizes or usual[1:] or usual
    sizes = tuple(dict.fromkeys(most if size == MAX_WORD else int(size) for size in asked))
    if (largest := max(sizes)) > most:
        listed = " + ".join(str(len(node.devices)) for node in nodes)
        where = f"all nodes ({listed})" if len(nodes) > 1 else "this machine"
        raise OptionError(
            "group_sizes",
            f": {largest} is above the {units.counted(most, 'replica')} of {where}; expected at "
            f"most {most}, or more --gpus",
        )
    return sizes


def _window_seconds(options: SweepOptions, nodes: Sequence[Node]) -> float | None:
    """Seconds that a window fills with steps; None where their number is known beforehand: it was
    asked for, or the orders of other nodes, samples that are loaded ahead, or averages of
    parameters need it. Models need two warm-up steps, of which the last one shows how long a step
    takes."""
    if options.steps is not None or len(nodes) > 1:
        return None
    if options.script is not None:
        return SCRIPT_WINDOW_SECONDS
    is_known = any(options.prefetch or ()) or options.sync_every != (1,)
    return None if is_known or min(options.warmup or (DEFAULT_WARMUP,)) < 2 else WINDOW_SECONDS


def _axes(
    options: SweepOptions, nodes: Sequence[Node], largest_group: int, *, fills_time: bool
) -> dict[str, tuple[Any, ...]]:
    """The values of each axis: those that are asked for, or else those that dpbench chooses. Raises
    UsageError for more threads than the nodes have."""
    is_script = options.script is not None
    period = math.lcm(*options.sync_every)
    whole_periods = math.ceil(DEFAULT_STEPS / period) * period
    fewest = MIN_SCRIPT_STEPS if is_script else MIN_FILLING_STEPS
    has_own_data = options.data is not None and is_function(options.data)
    chosen: dict[str, tuple[Any, ...]] = {
        "batch_size": (None,) if is_script else DEFAULT_BATCH_SIZES,
        "warmup": (DEFAULT_SCRIPT_WARMUP if is_script else DEFAULT_WARMUP,),
        "steps": (fewest if fills_time else whole_periods,),
        "prefetch": (0 if has_own_data else None,),  # not all samples of the user's are resident
        "threads": (_openmp_threads() if is_script else None,),
    }
    axes = {}
    for name in GRID:
        values = getattr(options, AXES[name].option)
        axes[name] = chosen[name] if values is None else values
    axes["architecture"] = measured_names(options)
    axes["threads"] = tuple(_threads(options, nodes, largest_group, n) for n in axes["threads"])
    return axes


def measured_names(options: SweepOptions) -> tuple[str, ...]:
    """The names of the models, or of the training script."""
    return options.arch if options.script is None else (Path(options.script).name,)


def _require_whole_parts(
    options: SweepOptions, axes: Mapping[str, Sequence[Any]], largest_group: int
) -> None:
    """Raise UsageError for a window that ends within a period between two averages, or for replicas
    without a sample."""
    for every in options.sync_every:
        if any(steps % every for steps in axes["steps"]):
            raise UsageError(
                f"--sync-every {every}: the timed window must hold whole periods; expected --steps "
                f"to be a multiple of {every}"
            )
    if "strong" in options.scaling and (smallest := min(axes["batch_size"])) < largest_group:
        raise OptionError(
            "batch_sizes",
            f": with --scaling strong {smallest} is the global batch, smaller than the group of "
            f"{largest_group}; expected at least {largest_group}, a sample for every replica",
        )


def _openmp_threads() -> int:
    """The threads of each rank of a script, as under torchrun: those of the variable, or 1."""
    first, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")  # one for each nesting
    return max(1, int(first)) if first.isdecimal() else 1


def _threads(
    options: SweepOptions, nodes: Sequence[Node], largest_group: int, threads: int | None
) -> int:
    """Threads per replica: as asked for, or as many as every node has for its part of the largest
    group. Raises UsageError for more than that, unless a script on GPUs takes them from its
    environment."""
    counts = fill_nodes(largest_group, [len(node.devices) for node in nodes])
    given_by = "OMP_NUM_THREADS" if options.threads is None else "--threads"
    may_exceed = options.oversubscribe or options.dry_run
    may_exceed = may_exceed or (options.threads is None and nodes[0].machine.gpus != ())
    return min(
        threads_for(threads, node.machine.cores, count, oversubscribe=may_exceed, by=given_by)
        for node, count in zip(nodes, counts, strict=False)  # the last ones may be idle
    )


def _workloads(options: SweepOptions) -> tuple[WorkloadSpec, ...]:
    """The workload of the script, or of each architecture.

    The first step of an architecture is taken here, so that errors of the user's code are known
    before any trial. Says what it shows, and raises UsageError for them.
    """
    if options.script is not None:
        _require_script(options.script, is_module=options.module)
        (name,) = measured_names(options)
        prefix = ("-m",) if options.module else ()
        script = (*prefix, options.script, *options.arguments)
        return (with_files(WorkloadSpec(architecture=name, dataset="", script=script)),)
    make_importable(*options.arch, options.data)
    workloads = list[WorkloadSpec]()
    for name in options.arch:
        tried = preflight(name, dataset=options.data, seed=options.seed[0])
        say(*tried.notes)
        workload = WorkloadSpec(
            architecture=name, dataset=tried.dataset, lr_scaling=options.lr_scaling
        )
        workloads.append(with_files(workload))
    return tuple(workloads)


def _require_script(script: str, *, is_module: bool) -> None:
    """Raise UsageError if there is no such script or module, or the file makes a model
    instead. Nothing of it runs here."""
    if is_module:
        if not _has_module(script):
            raise UsageError(f"-m {script}: no such module")
        return
    if not Path(script).is_file():
        raise UsageError(no_file(script))
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (SyntaxError, ValueError):  # which the script itself will tell
        return
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "make" in defined - called:
        raise UsageError(
            f"{script} makes a model and trains nothing; expected a training script; to measure "
            f"the model: dpbench sweep --arch {script}:make"
        )


def _has_module(name: str) -> bool:
    """Whether there is a module of this name; the packages around it are found and not imported."""
    outermost, *inner = name.split(".")
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        module = find_spec(outermost) if outermost else None
    except ValueError:  # such as __main__, which is no file
        module = None
    finally:
        sys.path.remove(str(Path.cwd()))
    for part in inner:
        folders = module.submodule_search_locations if module else None
        module = PathFinder.find_spec(part, folders or [])
    return module is not None
