"""Does a sweep measure what a user gets? CPU per step of a plain torchrun script ÷ of a trial.

The script knows nothing of dpbench. Its second form loads its samples one by one, as most scripts
do and as trials do with --data-workers: what that costs is named beside the first figure, since no
trial has it by default. The third figure is the trial with kept memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from dpbench.analysis.resources import cpu_seconds_per_step
from dpbench.architecture import load
from dpbench.data import datasets
from dpbench.records.trial import TrialRecord
from dpbench.specs import KEEP, SYSTEM, TrialSpec
from tests.benchmarks.figure import Figure, Ratio
from tests.benchmarks.trials import Bench, bench
from tests.builders import trial_spec

ROUNDS = 12
RANKS, BATCH, WARMUP, STEPS = 2, 64, 10, 60
SCRIPT = "tests.benchmarks.plain_ddp"
ROOT = Path(__file__).parents[2]
CLEAN = ("MALLOC_", "DPBENCH_")


def run() -> Iterator[Figure]:
    with bench() as machine, tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        _write_samples(machine, data)
        sides: dict[str, Callable[[], float]] = {
            "trial": lambda: _trial(machine, SYSTEM),
            "script": lambda: _script(data, "indexed"),
            "loader": lambda: _script(data, "loader"),
            "kept": lambda: _trial(machine, KEEP),
        }
        taken = _in_turn(sides)
    script = Ratio.of(taken["script"], taken["trial"])
    yield Figure(
        name="CPU per step, plain torchrun script ÷ trial (torch-ddp on gloo ×2, mnist_cnn, "
        f"batch {BATCH}; {fmean(taken['trial']) * 1e3:.1f} ms in the trial)",
        value=str(script),
        target="1.00 ± 0.03, or an interval that reaches it",
        met=script.low <= 1.03 and script.high >= 0.97,
    )
    for name, words in (
        ("loader", "the same with DataLoader and DistributedSampler ÷ trial"),
        ("kept", "trial with --allocator keep ÷ trial"),
    ):
        found = Ratio.of(taken[name], taken["trial"])
        yield Figure(name=words, value=str(found), target="named, not promised", met=True)


def _in_turn(sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Rounds there and back, so that a drift of the machine falls on all alike."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        names: Sequence[str] = list(sides)
        for name in names if number % 2 == 0 else reversed(names):
            taken[name].append(sides[name]())
    return taken


def _spec(allocator: str) -> TrialSpec:
    return trial_spec(
        implementation="torch-ddp",
        backend="gloo",
        group_size=RANKS,
        batch_size=BATCH,
        warmup_steps=WARMUP,
        timed_steps=STEPS,
        phase_steps=0,
        gradient_steps=0,
        allocator=allocator,
    )


def _trial(machine: Bench, allocator: str) -> float:
    trial = _spec(allocator)
    outcome = machine.run(trial)
    record = TrialRecord(
        trial=trial,
        environment_id="",
        started_utc="",
        duration_seconds=0.0,
        status=outcome.status,
        ranks=outcome.ranks,
    )
    found = cpu_seconds_per_step(record)
    assert found is not None
    return found


def _script(data: Path, how: str) -> float:
    numbers = [str(number) for number in (BATCH, WARMUP, STEPS)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(CLEAN)}
    with tempfile.TemporaryDirectory() as out:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={RANKS}", "-m", SCRIPT, str(data), out, how]
        subprocess.run(
            [*command, *numbers],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env={**environ, "OMP_NUM_THREADS": "1"},
        )
        found = [json.loads(path.read_text())["cpu"] for path in Path(out).glob("rank*.json")]
    assert len(found) == RANKS
    return fmean(found)


def _write_samples(machine: Bench, path: Path) -> None:
    """The trial's samples as the script reads them."""
    data = datasets.load("digits", machine.prepared, load("mnist_cnn"), seed=0, samples=1)
    np.savez(path, inputs=data.inputs.numpy(), targets=data.targets.numpy())
