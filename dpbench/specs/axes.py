"""The axes of a sweep: settings that take several values, and how names and columns show them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dpbench.messages import as_typed
from dpbench.units import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A setting of configurations, and how a sweep shows its values."""

    option: str = ""
    """The option of a sweep that lists its values."""
    shown: Callable[[Any], str] | None = str
    """The text in a name for a value that is not the default; None if all names tell it."""
    unnamed: Any = None
    """A value beside the default that names tell only where the sweep has several."""
    meaning: str = ""
    """Meaning of the column with its values; empty for a setting without a column of this kind."""
    none: str = ""
    """The word for None, where that is a value of its own."""
    changes_work: bool = False
    """Whether its values are different work, so that speeds are not compared across them; names
    have it where the sweep has several, and only there."""
    in_scripts: bool = False
    """Whether its name in braces stands for its value in the arguments of a training script."""

    def text(self, value: Any) -> str:
        """The value as it is typed: "auto", "25", "32,64"."""
        return as_typed(value, self.none)


def _named(**axes: Axis) -> dict[str, Axis]:
    """The axes by name; an axis that gives no option has the one of its name."""
    return {name: replace(axis, option=axis.option or name) for name, axis in axes.items()}


AXES = _named(
    implementation=Axis(option="implementations", shown=None),
    backend=Axis(option="backends", shown=None),
    group_size=Axis(option="group_sizes", shown=None),
    batch_size=Axis(option="batch_sizes", shown=None, in_scripts=True),
    architecture=Axis(option="arch", meaning="The model.", changes_work=True),
    scaling=Axis(
        meaning="weak: each replica keeps its batch; strong: they share one.", changes_work=True
    ),
    optimizer=Axis(
        meaning="The optimizer; its kernels follow the dash if they were chosen.", in_scripts=True
    ),
    lr=Axis(shown="lr {:g}".format, in_scripts=True),
    seed=Axis(
        shown="seed {}".format, meaning="Seed for weights and sample order.", in_scripts=True
    ),
    dtype=Axis(
        meaning="Number format of the products in forward and backward; parameters and "
        "gradients stay float32.",
        in_scripts=True,
    ),
    compile=Axis(
        shown=lambda mode: "compiled" if mode == "default" else mode,
        meaning="Mode of torch.compile.",
        in_scripts=True,
    ),
    accumulate=Axis(
        shown="{} micro-steps".format,
        meaning="Micro-steps in one optimizer step (gradient accumulation).",
        in_scripts=True,
    ),
    sync_every=Axis(meaning="Optimizer steps between two averages of the parameters (local-sgd)."),
    bucket_cap_mb=Axis(
        shown="{:g} MiB".format,
        meaning="Bucket size in MiB: gradients in one collective; missing where the "
        "implementation chose.",
        none="auto",
    ),
    find_unused=Axis(
        shown="find-unused {}".format,
        meaning="Whether the wrapper looks for unused parameters in each step; missing where the "
        "script or the implementation chose.",
        none="auto",
    ),
    comm_hook=Axis(shown="{} hook".format, meaning="Communication hook that compresses gradients."),
    batched_copy=Axis(
        shown="batched-copy {}".format,
        meaning="Whether the gradients of a bucket are copied into it at once; missing where the "
        "implementation chose.",
        none="auto",
    ),
    overlap=Axis(
        shown="no overlap".format,
        meaning="Whether gradients are averaged during the backward pass (on) or after it (off).",
    ),
    prefetch=Axis(
        shown="prefetch {}".format,
        meaning="Steps whose samples are loaded ahead from host memory, or batches for each "
        "worker; missing if all samples are on the device.",
        unnamed=0,  # the default with a user's data, which are never on the device
        none="resident",
    ),
    data_workers=Axis(
        shown=partial(counted, noun="worker"),
        meaning="Processes of each rank that load samples; missing where there are none, or the "
        "script chose.",
        unnamed=0,
        none="auto",
    ),
    warmup=Axis(shown="{} warmup".format, meaning="Steps before the timed window."),
    steps=Axis(shown=partial(counted, noun="step")),
    threads=Axis(
        shown=partial(counted, noun="thread"), meaning="Threads that a replica computes with."
    ),
)
"""The axes by field of a Configuration or its workload, in the order of plans and of names."""
GRID = tuple(name for name in AXES if name not in ("implementation", "backend", "group_size"))
"""The axes whose values a sweep combines in each group of replicas; the other three make groups."""
PLACEHOLDER = re.compile(f"{{({'|'.join(n for n, axis in AXES.items() if axis.in_scripts)})}}")
