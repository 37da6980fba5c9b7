"""The public Python names stay, with their parameters.

You may add names and parameters. To remove one, change this file and say so in CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

import dpbench
import dpbench.parallel
from tools.docs import ROOT

CALLABLES = {
    "DataParallel": "module device_ids output_device dim * loss_reduction cache",
    "DistributedDataParallel": "module device_ids output_device dim broadcast_buffers init_sync"
    " process_group bucket_cap_mb find_unused_parameters check_reduction gradient_as_bucket_view"
    " static_graph * device_mesh forward_sync_buffers bucket_cap_mb_list overlap",
    "TrainingResult": "* model loss_history norm_history indices elapsed_seconds",
    "analyze_scaling": "start values kind * start_group_size",
    "check": "arch * candidate baseline progress",
    "dp_train": "make_model data * n_gpu devices mode n_iter batch_per_replica lr max_norm"
    " optimizer scheduler loss_fn forward_fn target_fn seed verbose on_backward"
    " on_reduce on_step on_broadcast",
    "explain": "results_or_script * progress",
    "gather": "outputs device dim",
    "load": "path",
    "process_group": "backend * init_method store rank world_size timeout wait_for_workers device",
    "scatter": "obj devices dim",
    "sweep": "arch * report progress",
    "train": "arch * progress",
    "data.sharding.BalancedSampler": "dataset_size * rank world_size shuffle seed",
    "launch.fork_world.fork_world": "fn n * start_method timeout",
    "parallel.ShardedOptimizer": "model optimizer",
    "parallel.all_reduce": "tensor op group",
    "parallel.any_rank": "flag * process_group",
    "parallel.balanced_split": "n parts",
    "parallel.broadcast_checkpoint": "module * src process_group",
    "parallel.check_sync": "module * process_group gradients",
    "parallel.sync_gradients": "module * process_group",
    "rendezvous.backends.missing_backends": "",
    "rendezvous.barrier.barrier": "label * timeout process_group",
    "rendezvous.placement.local_gpu_index": "rank world_size environ",
    "specs.workload.scale_lr": "base ratio rule",
}
"""Parameters by the name in dpbench, or in a module of it; * starts the keyword-only ones.
docs/reference.md has the options of commands."""

OTHERS = ("Answer", "Results", "Trained", "__version__", "parallel.RanksDiffer")
"""Public names that only dpbench calls, or that are not callable."""


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
    assert sorted(listed) == sorted([*CALLABLES, *OTHERS])
    at_the_top = {name for name in listed if "." not in name}
    assert at_the_top == {*dpbench.__all__} == {*dir(dpbench)}
    assert {*dpbench.parallel.__all__} - at_the_top == {
        name.removeprefix("parallel.") for name in listed if name.startswith("parallel.")
    }


def value_of(name: str) -> Any:
    module, _, own = f"dpbench.{name}".rpartition(".")
    return getattr(importlib.import_module(module), own)


@pytest.mark.parametrize("name", [*CALLABLES, *OTHERS])
def test_public_names_stay_with_their_parameters(name: str) -> None:
    value = value_of(name)
    if name in CALLABLES:
        positional, _, by_name = (part.split() for part in CALLABLES[name].partition("*"))
        parameters = inspect.signature(value).parameters
        assert {*positional, *by_name} <= parameters.keys()
        now = [key for key, each in parameters.items() if each.kind != each.KEYWORD_ONLY]
        assert now[: len(positional)] == positional
