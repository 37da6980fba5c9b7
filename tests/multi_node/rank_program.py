"""What one rank of a plan does: every measurement in turn, in step with the ranks of other hosts.

    python -m tests.multi_node.rank_program PLAN FOLDER

torch's elastic agent starts it, and says through the environment which rank it is and where the
others are. A trial of group size 1 is run by every rank for itself, by all at the same time: so
what they cost each other on one machine is in it, and communication is not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from dpbench.codec import decode, encode
from dpbench.measure.collectives import WrongResult, measure_collective
from dpbench.measure.trial import measure
from dpbench.records.collectives import CollectiveSpec, RankCollectives
from dpbench.records.trial import RankMeasurement
from dpbench.specs import TrialSpec

PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Plan:
    """Measurements in the order in which all ranks make them."""

    trials: tuple[TrialSpec, ...]
    collectives: tuple[CollectiveSpec, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """What one rank measured, in the order of the plan."""

    trials: tuple[RankMeasurement, ...]
    collectives: tuple[RankCollectives, ...]


class Meeting:
    """Where the ranks wait for each other between measurements, and get a fresh store for each:
    keys of an ended process group must not be taken for those of the next."""

    def __init__(self) -> None:
        environment = os.environ
        self.rank, self.size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self._address, self._port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"]) + 1
        self._store = dist.TCPStore(
            self._address, self._port, is_master=self.rank == 0, timeout=PATIENCE
        )
        self._met = 0

    def together(self) -> None:
        """Returns when every rank has called it."""
        self._met += 1
        if self._store.add(f"met {self._met}", 1) == self.size:
            self._store.set(f"all {self._met}", "")
        self._store.wait([f"all {self._met}"])

    @contextmanager
    def group_of(self, size: int) -> Iterator[int]:
        """The environment of a process group of all ranks or of this one; yields the rank in it."""
        self.together()
        alone = size == 1
        rank = 0 if alone else self.rank
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1" if alone else self._address,
            "MASTER_PORT": str(self._port + self._met),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        with mock.patch.dict(os.environ, environment):
            yield rank


def run(plan: Plan) -> Results:
    """Raises RuntimeError if gradients or sums were wrong."""
    meeting = Meeting()
    collectives = []
    for collective in plan.collectives:
        with meeting.group_of(collective.group_size) as rank:
            outcome = measure_collective(collective, rank)
        if isinstance(outcome, WrongResult):
            raise RuntimeError(f"{collective.label}: wrong result, {outcome.text}")
        collectives.append(outcome)
    trials = []
    for trial in plan.trials:
        with meeting.group_of(trial.group_size) as rank:
            report = measure(trial, None, rank)
        if report.measurement is None:
            raise RuntimeError(f"{trial.label}: wrong gradients, {report.verification}")
        trials.append(report.measurement)
    meeting.together()  # the store lives in rank 0
    return Results(tuple(trials), tuple(collectives))


def main(plan: str, folder: str) -> None:
    results = run(decode(Plan, json.loads(Path(plan).read_text())))
    path = Path(folder) / f"rank{os.environ['RANK']}.json"
    path.write_text(json.dumps(encode(results)))


if __name__ == "__main__":
    main(*sys.argv[1:])
