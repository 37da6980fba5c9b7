"""`--batch-sizes max`: the largest batch of a replica that fits, found before a sweep begins.

The peak memory of small batches is measured and extrapolated: trying until memory runs out would
end other programs on a CPU, and takes many trials on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil, floor

import psutil

from dpbench import units
from dpbench.data.registry import prepare_dataset
from dpbench.errors import UsageError
from dpbench.launch.cluster import Node
from dpbench.launch.trial_runner import TrialRunner
from dpbench.messages import option_words, say
from dpbench.options.shared import MAX_WORD
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs import Labels, TrialSpec, plain_label
from dpbench.specs.sweep import configurations
from dpbench.temporary import temporary_folder

SHARE_OF_MEMORY = {"cpu": 0.5, "cuda": 0.8}
"""The share of the free memory of a node, or of the memory of a GPU, that its replicas may take.
What CUDA and the allocator need beside the tensors is not in the peak."""
TRY_SECONDS = 60.0
MAX_SAMPLES = 2**20
FIRST_BATCH = 2
"""First batch to try: a batch norm cannot train on one sample."""
BATCH_GROWTH = 4
"""Factor between two batches whose memory is compared."""
CLEAR_BYTES = 256 * 2**20
"""Least difference in memory of two compared batches: far more than equal runs differ by."""
NOISE_BYTES = 16 * 2**20
"""Smallest growth that is assumed, so that noise predicts no batch that is too large."""


def with_largest_batch(options: SweepOptions, node: Node) -> SweepOptions:
    """The options with the largest batch as a plain number; says what was tried.

    Raises UsageError if no batch fits, or if the largest differs between rows of the sweep.
    """
    if len(options.arch) > 1 or "strong" in options.scaling:
        raise UsageError(
            f"{_option()}: the largest batch of a replica differs between architectures and group "
            f"sizes; expected one {option_words('arch')} and {option_words('scaling', 'weak')}, or "
            "a number"
        )
    spec, _ = build_sweep_spec(options.replace(batch_sizes=(1,)), [node])
    largest_group = max(spec.group_sizes)
    alone = configurations(replace(spec, group_sizes=(1,)))
    implementation = options.measured_implementations[0]
    tried = next(each for each in alone if each.implementation == implementation)
    steps = 2 * tried.sync_every
    trial = replace(tried, warmup_steps=1, timed_steps=steps, window_seconds=None)
    with temporary_folder() as scratch:
        runner = TrialRunner(node.machine, scratch / "logs", scratch)
        if reason := runner.unusable_reason(trial):
            raise UsageError(f"{_option()}: {plain_label(trial)} cannot be tried: {reason}")
        dataset = spec.base.workload.dataset
        samples = prepare_dataset(dataset, data_dir=options.data_dir, cache=scratch)
        most = MAX_SAMPLES if samples is None else max(1, samples // largest_group)
        if gpus := node.machine.gpus:
            memory = SHARE_OF_MEMORY["cuda"] * min(gpu.memory_bytes for gpu in gpus)
            sharing = ceil(largest_group / len(gpus))
        else:
            memory = SHARE_OF_MEMORY["cpu"] * psutil.virtual_memory().available
            sharing = largest_group
        largest = by_predicting(partial(_peak, runner, trial), memory / sharing, most)
    if largest is None:
        raise UsageError(f"{_option()}: not even the smallest batch fits; expected a number")
    say(f"{_option()}: {largest} for {Labels().series(trial)}")
    return options.replace(batch_sizes=dict.fromkeys((*options.known_batch_sizes, largest)))


def _option() -> str:
    return option_words("batch_sizes", MAX_WORD)


def _peak(runner: TrialRunner, trial: TrialSpec, batch_size: int) -> int | None:
    """Peak memory in bytes; None for a batch that does not fit.

    Raises UsageError for a failure that is not of memory or time.
    """
    record = runner.run(replace(trial, batch_size=batch_size), TRY_SECONDS)
    if record.status is not Status.COMPLETED:
        words = f"{_option()}: batch {batch_size} {record.status.words}: {record.reason}"
        if record.status not in (Status.OUT_OF_MEMORY, Status.TIMED_OUT):
            raise UsageError(words)
        say(words)
        return None
    peak = max(
        rank.peak_device_memory_bytes or rank.peak_host_memory_bytes or 0 for rank in record.ranks
    )
    say(f"{_option()}: {batch_size} takes {units.bytes_binary(peak)}")
    return peak


def by_predicting(
    measure: Callable[[int], int | None], budget_bytes: float, most: int
) -> int | None:
    """Measure the peak memory of ever larger batches until it grows clearly, then extrapolate
    linearly; None if not even the first fits.

    `measure` returns the bytes of a batch, None if it does not fit; none is measured that the ones
    before predict to exceed the budget.
    """
    first = size = min(FIRST_BATCH, most)
    slope, peak = float(NOISE_BYTES), measure(size)
    if peak is None or peak > budget_bytes:
        return None
    while size < most and peak <= budget_bytes:
        following = min(BATCH_GROWTH * size, most)
        if peak + slope * (following - size) > budget_bytes:
            if size == first:  # how fast it grows is not known
                return size
            break
        before, larger = peak, measure(following)
        if larger is None:
            return size
        slope = max(larger - before, NOISE_BYTES) / (following - size)
        size, peak = following, larger
        if peak - before >= CLEAR_BYTES:
            break
    return min(most, size + floor((budget_bytes - peak) / slope))
