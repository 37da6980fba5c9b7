"""The folders that fuzzed commands are pointed at."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from dpbench import environment
from dpbench.grid import plan, run
from dpbench.launch.synthetic import SyntheticLauncher
from dpbench.store import SweepStore
from tests.builders import WORKLOAD, sweep_spec

SPEC = sweep_spec(
    implementations=("dp", "ddp", "local-sgd"),
    batch_sizes=(8,),
    timed_steps=12,
    repetitions=4,
    sync_every=2,
    phase_steps=2,
    noise_steps=5,
    target_loss=2.25,
    gradient_steps=2,
    bucket_cap_mb=5.0,
    workload=replace(WORKLOAD, learning_rate_rule="sqrt"),
)
"""Small, but with everything in it that a synthetic record can hold."""
COMMAND = ["sweep", "--synthetic-launcher"]
PUBLISHED = "group_size,images_per_second,backend,batch_size\n1,100,gloo,32\n2,190,gloo,32\n"


def make(folder: Path) -> None:
    """A good sweep twice, a damaged one, an empty folder, a file, and published numbers."""
    here = environment.capture(launcher=environment.SYNTHETIC)
    records = list(
        run(
            plan(SPEC),
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
