"""The folders that fuzzed commands are pointed at."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.fuzz.commands import dpbench

SWEEP = ["sweep", "--implementations", "dp,ddp,local-sgd", "--gpus", "2", "--batch-sizes", "8", "--repetitions", "4", "--steps", "12", "--sync-every", "2", "--phases", "2", "--noise-scale", "2", "--target-loss", "2.25", "--quiet", "--json", "--synthetic-launcher", "--name"]
"""Small, but with everything in it that a record can hold."""
PUBLISHED = "group_size,images_per_second,backend,batch_size\n1,100,gloo,32\n2,190,gloo,32\n"


def make(folder: Path) -> None:
    """A good sweep twice, a damaged one, an empty folder, a file, and published numbers."""
    for name in ("good", "other"):
        assert dpbench([*SWEEP, name, "--results-dir", "."], folder).status == 0
        shutil.rmtree(folder / name / "report")
    shutil.copytree(folder / "good", folder / "damaged")
    trials = folder / "damaged" / "trials.jsonl"
    trials.write_bytes(trials.read_bytes()[:-30])
    (folder / "empty").mkdir()
    (folder / "file").write_text("a file")
    (folder / "published.csv").write_text(PUBLISHED)
