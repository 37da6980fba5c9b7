"""The folders that fuzzed commands are pointed at."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from dpbench.records import environment
from dpbench.run.sweep.grid import plan_trials, run_trials
from dpbench.store import SweepStore
from tests.builders import WORKLOAD, sweep_spec
from tests.launch.synthetic import SyntheticLauncher

SPEC = sweep_spec(
    implementations=("dp", "ddp", "local-sgd"),
    batch_sizes=(8,),
    timed_steps=12,
    repetitions=4,
    sync_every=2,
    phase_steps=2,
    gradient_steps=2,
    bucket_cap_mb=5.0,
    workload=replace(WORKLOAD, learning_rate_rule="sqrt"),
)
"""Small, but with everything in it that a synthetic record can hold."""
COMMAND = ["sweep"]
MODEL = """
import torch
from torch import nn


def build(width: int = 4):
    def batch(n, generator=None):
        return torch.randn(n, 8, generator=generator), torch.zeros(n, dtype=torch.long)

    return nn.Linear(8, width), batch, nn.functional.cross_entropy


def step(*arguments):
    raise RuntimeError("two\\nlines")
"""
CONFIG = "batch-sizes = [8]\ndtypes = ['f32']\n"
PUBLISHED = "group_size,images_per_second,backend,batch_size\n1,100,gloo,32\n2,190,gloo,32\n"


def make(folder: Path) -> None:
    """A good sweep twice, a damaged one, an empty folder, a file, published numbers, a model, and
    files of options."""
    here = environment.capture(launcher=environment.SYNTHETIC)
    records = list(
        run_trials(
            plan_trials(SPEC),
            SyntheticLauncher(),
            environment_id=here.environment_id,
            time_limit_seconds=1.0,
        )
    )
    with SweepStore.create(folder / "good", SPEC, COMMAND) as results:
        results.add_environment(here)
        for record in records:
            results.append(record)
    for name in ("other", "damaged"):
        shutil.copytree(folder / "good", folder / name)
    trials = folder / "damaged" / "trials.jsonl"
    trials.write_bytes(trials.read_bytes()[:-30])
    (folder / "empty").mkdir()
    (folder / "file").write_text("a file")
    (folder / "published.csv").write_text(PUBLISHED)
    (folder / "model.py").write_text(MODEL)
    (folder / "sweep.toml").write_text(CONFIG)
    (folder / "damaged.toml").write_text(CONFIG[:-8])
    (folder / "sweep.yaml").write_text("batch-sizes: [8]\ncomm-hook: none,bf16\n")
