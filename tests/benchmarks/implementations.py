"""Our implementations against torch's, in trials that alternate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dpbench.specs import TrialSpec
from tests.benchmarks.figure import Figure, Ratio, alternating
from tests.benchmarks.trials import Bench, bench
from tests.builders import WORKLOAD, trial_spec

PAIRS = 6


def run() -> Iterator[Figure]:
    with bench() as machine:
        for architecture in ("mnist_cnn", "mlp"):
            workload = replace(WORKLOAD, architecture=architecture)
            trial = trial_spec(workload=workload, batch_size=32, warmup_steps=10, timed_steps=50)
            ours = _throughput(machine, trial)
            torchs = _throughput(machine, replace(trial, implementation="torch-ddp"))
            ratio = Ratio.of(*alternating(ours, torchs, PAIRS))
            yield Figure(
                name=f"images/s of ddp ÷ torch-ddp ({architecture}, gloo ×2, batch 32)",
                value=str(ratio),
                target="at least 1, within the noise",
                met=ratio.high >= 1,
            )
            threads = replace(trial, implementation="dp", backend="threads")
            single = replace(
                trial, implementation="single", backend="none", group_size=1, devices=("cpu",)
            )
            pairs = alternating(_throughput(machine, threads), _throughput(machine, single), PAIRS)
            speedup = Ratio.of(*pairs)
            yield Figure(
                name=f"images/s of dp ×2 ÷ single ({architecture}, batch 32)",
                value=str(speedup),
                target="above 1",
                met=speedup.low > 1,
            )


def _throughput(machine: Bench, trial: TrialSpec) -> Callable[[], float]:
    def measure() -> float:
        ranks = machine.run(trial).ranks
        samples = sum(rank.timed.samples for rank in ranks)
        return samples / max(rank.timed.seconds for rank in ranks)

    return measure
