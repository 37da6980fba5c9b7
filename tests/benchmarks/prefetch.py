"""What loading ahead saves with a slow loader: steps with `prefetch` 0 and 2, side by side.

The loader waits as a disk or a network does, about as long as the step computes: so at best the
waiting is hidden whole and the throughput doubles.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import torch

from dpbench import architecture
from dpbench.data.datasets import Dataset
from dpbench.data.loader import EpochLoader
from dpbench.data.sharding import EpochPlan
from dpbench.specs import WorkloadSpec
from dpbench.specs.training import TrainingSpec
from tests.benchmarks.figure import Figure, Ratio, alternating

NAME, BATCH, STEPS, PAIRS = "mlp", 64, 40, 10
AHEAD = 2
CPU = torch.device("cpu")
MOST_WAIT, LEAST_THROUGHPUT = 0.5, 1.3


class _SlowSamples:
    """Samples of which every batch takes `seconds` to come."""

    def __init__(self, samples: torch.Tensor, seconds: float) -> None:
        self._samples = samples
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        time.sleep(self._seconds)
        return self._samples[indices]


class _Training:
    def __init__(self, latency_seconds: float) -> None:
        self._architecture = architecture.load(NAME)
        count = BATCH * STEPS
        generator = torch.Generator().manual_seed(0)
        inputs, targets = self._architecture.synthetic_batch(count, generator)
        slow = cast(torch.Tensor, _SlowSamples(inputs, latency_seconds))
        self._data = Dataset(inputs=slow, targets=targets)
        self._plan = EpochPlan(_spec(), count)
        self._module = self._architecture.build_model()
        self._sgd = torch.optim.SGD(self._module.parameters(), lr=1e-3)
        self.wait_shares: dict[int, list[float]] = {0: [], AHEAD: []}

    def seconds(self, prefetch: int) -> float:
        """Of an epoch; its share of waiting goes to `wait_shares`."""
        loader = EpochLoader(self._data, self._plan, process=0, device=CPU, prefetch=prefetch)
        start = time.perf_counter()
        with loader.epoch(0) as windows:
            for window in windows:
                (batch,) = window.batches
                self._sgd.zero_grad()
                self._architecture.loss(self._module(batch.inputs), batch.targets).backward()
                self._sgd.step()
            seconds = time.perf_counter() - start
            self.wait_shares[prefetch].append(windows.waited_seconds / seconds)
        return seconds


def run() -> Iterator[Figure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    step_seconds = min(_Training(0.0).seconds(0) for _ in range(3)) / STEPS
    training = _Training(step_seconds)
    training.seconds(0)
    training.wait_shares[0].clear()
    off, on = alternating(lambda: training.seconds(0), lambda: training.seconds(AHEAD), PAIRS)
    torch.set_num_threads(threads)
    waits = Ratio.of(training.wait_shares[AHEAD], training.wait_shares[0])
    throughput = Ratio.of(off, on)
    case = f"{NAME}, {BATCH}, loader as slow as the step: {step_seconds * 1e3:.1f} ms"
    yield Figure(
        name=f"share of data wait with prefetch {AHEAD} ÷ without ({case})",
        value=f"{waits}; {_percent(training, AHEAD)} against {_percent(training, 0)}",
        target=f"below {MOST_WAIT}",
        met=waits.high < MOST_WAIT,
    )
    yield Figure(
        name=f"throughput with prefetch {AHEAD} ÷ without ({case})",
        value=str(throughput),
        target=f"above {LEAST_THROUGHPUT}",
        met=throughput.low > LEAST_THROUGHPUT,
    )


def _percent(training: _Training, prefetch: int) -> str:
    shares = training.wait_shares[prefetch]
    return f"{100 * sum(shares) / len(shares):.1f} %"


def _spec() -> TrainingSpec:
    return TrainingSpec(
        workload=WorkloadSpec(architecture=NAME, dataset="synthetic"),
        implementation="single",
        backend="none",
        group_size=1,
        batch_size=BATCH,
        devices=("cpu",),
        threads_per_replica=1,
        epochs=1,
    )
