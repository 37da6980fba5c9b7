"""A launcher on this machine with the digits prepared, for the benchmarks that run real trials."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpbench.data.registry import prepare
from dpbench.launch.agent import ElasticLauncher
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.machine import inspect_machine
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec


@dataclass(frozen=True, slots=True)
class Bench:
    launcher: ElasticLauncher
    prepared: Path

    def run(self, trial: TrialSpec) -> TrialOutcome:
        outcome = self.launcher.run(trial, 120)
        if outcome.status is not Status.COMPLETED:
            raise RuntimeError(f"{trial.label}: {outcome.reason}")
        return outcome


@contextmanager
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="dpbench-bench-") as folder:
        prepared = prepare("digits", data_dir=None, cache=Path(folder)).folder
        assert prepared is not None
        launcher = ElasticLauncher(inspect_machine(), prepared, Path(folder) / "logs")
        yield Bench(launcher, prepared)
