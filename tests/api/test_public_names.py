"""The public Python names stay, with their parameters.

You may add names and parameters. To remove one, change this file and say so in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import dpbench
import dpbench.parallel
from tools.docs import ROOT

PARALLEL = {
    "DataParallel": "module device_ids output_device dim * threads_per_replica loss_reduction"
    " cache",
    "DistributedDataParallel": "module device_ids output_device dim broadcast_buffers init_sync"
    " process_group bucket_cap_mb find_unused_parameters check_reduction gradient_as_bucket_view"
    " static_graph * device_mesh forward_sync_buffers bucket_cap_mb_list overlap",
    "ShardedOptimizer": "model optimizer",
    "broadcast_checkpoint": "module * src process_group",
    "check_sync": "module * process_group gradients",
    "gather": "outputs device dim",
    "scatter": "obj devices dim",
}
"""Callables that both `dpbench.parallel` and `dpbench` export; * starts the keyword-only ones."""

PARALLEL_ALONE = {
    "any_rank": "flag * process_group",
    "balanced_split": "n parts",
    "sync_gradients": "module * process_group",
}
"""Callables that only `dpbench.parallel` exports."""

OTHERS = {
    "BalancedSampler": "dataset_size * rank world_size shuffle seed",
    "TrainingResult": "* model loss_history norm_history indices elapsed_seconds",
    "all_reduce": "tensor op group",
    "analyze_scaling": "start values kind * start_group_size",
    "barrier": "label * timeout process_group",
    "broadcast": "tensor src group",
    "check": "arch * candidate baseline progress",
    "destroy_process_group": "",
    "dp_train": "make_model data * n_gpu devices mode n_iter batch_per_replica lr max_norm"
    " optimizer scheduler loss_fn forward_fn target_fn seed verbose on_backward"
    " on_reduce on_step on_broadcast",
    "explain": "results_or_script * progress",
    "fork_world": "fn n * start_method timeout",
    "get_rank": "group",
    "get_world_size": "group",
    "is_initialized": "",
    "load": "path",
    "local_gpu_index": "rank world_size environ",
    "missing_backends": "",
    "process_group": "backend * init_method store rank world_size timeout wait_for_workers device",
    "scale_lr": "base ratio rule",
    "sweep": "arch * report progress",
    "train": "arch * progress",
}
"""Callables that only `dpbench` exports; docs/reference.md has the options of commands."""

WITHOUT_PARAMETERS = {
    "dpbench": ["Diverged", "Trained", "__version__"],
    "dpbench.parallel": ["RanksDiffer"],
}
"""Public names that only dpbench calls, or that are not callable."""


def test_public_names_are_importable_and_listed() -> None:
    for module, names in (
        (dpbench, [*PARALLEL, *OTHERS, *WITHOUT_PARAMETERS["dpbench"]]),
        (
            dpbench.parallel,
            [*PARALLEL, *PARALLEL_ALONE, *WITHOUT_PARAMETERS["dpbench.parallel"]],
        ),
    ):
        missing = [name for name in names if not hasattr(module, name)]
        assert (module.__name__, missing) == (module.__name__, [])
        assert set(names) <= set(module.__all__)
        assert set(names) <= set(dir(module))


def test_one_table_of_the_documentation_has_each_public_name() -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("api.md", "parallel.md")]
    tables = [re.findall(r"^\| name \|.*\n((?:\|.*\n)+)", page, re.MULTILINE) for page in pages]
    cells = [
        line.split("|")[1]
        for found in tables
        for table in found
        for line in table.split("\n")[1:-1]
    ]
    listed = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    alone = set(dpbench.parallel.__all__) - set(dpbench.__all__)
    assert sorted(listed) == sorted([*dpbench.__all__, *(f"parallel.{name}" for name in alone)])
    assert len(dpbench.__all__) <= 31


def test_public_callables_take_their_parameters() -> None:
    pinned = [
        *((getattr(dpbench, name), text) for name, text in (PARALLEL | OTHERS).items()),
        *((getattr(dpbench.parallel, name), text) for name, text in PARALLEL_ALONE.items()),
    ]
    assert not [reason for function, text in pinned for reason in changes(function, text)]


def changes(function: Callable[..., Any], text: str) -> Iterator[str]:
    """Name what a caller of the pinned signature would notice."""
    positional, _, by_name = (part.split() for part in text.partition("*"))
    parameters = inspect.signature(function).parameters
    if missing := [name for name in [*positional, *by_name] if name not in parameters]:
        yield f"{function.__name__} no longer takes {', '.join(missing)}"
    now = [name for name, each in parameters.items() if each.kind != each.KEYWORD_ONLY]
    if now[: len(positional)] != positional:
        yield f"{function.__name__} takes {', '.join(now)} by position, not {', '.join(positional)}"
