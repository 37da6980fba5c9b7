"""What it costs to note when gradients are ready: traced steps ÷ the untraced ones beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import torch
from scipy.stats import quantile_test

from dpbench import architecture
from dpbench.data import datasets
from dpbench.measure.gradient_trace import trace_gradients
from dpbench.measure.implementations import Plain
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import Trainer
from dpbench.records.trial import GradientTrace
from tests.benchmarks.figure import Figure, Ratio

BATCH, WARMUP = 32, 5
PAIRS = {"mlp": 1500, "mnist_cnn": 800, "resnet": 60}
"""Half a minute to a minute each."""
MOST = 1.01


def run() -> Iterator[Figure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, pairs in PAIRS.items():
        trace = _trace(name, pairs)
        pairs_of_steps = zip(trace.step_seconds, trace.untraced_step_seconds, strict=True)
        ratio = _median([traced / untraced for traced, untraced in pairs_of_steps])
        yield Figure(
            name=f"step with {len(trace.parameters)} gradients traced ÷ without ({name}, {BATCH})",
            value=str(ratio),
            target=f"below {MOST}",
            met=ratio.value < MOST,
        )
    torch.set_num_threads(threads)


def _median(ratios: Sequence[float]) -> Ratio:
    """With the interval that order statistics give: what else the machine does, and it falls on
    few of the steps but heavily, does not move it."""
    test = quantile_test(ratios, p=0.5)
    interval = test.confidence_interval(0.95)
    return Ratio(median(ratios), float(interval.low), float(interval.high), len(ratios))


def _trace(name: str, pairs: int) -> GradientTrace:
    """In one process; the same batch at every step."""
    loaded = architecture.load(name)
    data = datasets.load("synthetic", None, loaded, seed=0, samples=BATCH)
    module = loaded.build_model()
    sgd = torch.optim.SGD(module.parameters(), lr=1e-3)
    trainer = Trainer(Plain(module), sgd, loaded, data, accumulation_steps=1)
    batch = [torch.arange(BATCH)]
    for _ in range(WARMUP):
        trainer.step(batch)
    alone = RankGroup(size=1, control=None)
    trace = trace_gradients(trainer, module, [batch] * (2 * pairs), torch.device("cpu"), alone)
    assert trace is not None
    return trace
