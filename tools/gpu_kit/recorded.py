"""What a sweep on a GPU has to have recorded: `python -m tools.gpu_kit.recorded FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from dpbench.records.trial import RankMeasurement, TrialRecord
from dpbench.store import load


def main(folder: str) -> int:
    completed = [record for record in load(Path(folder)).records if record.ranks]
    if not completed:
        print("Error: no trial has completed")
        return 1
    missing = {
        name for record in completed for rank in record.ranks for name in _missing(record, rank)
    }
    # They are counted once for each configuration.
    if any(r.flops_per_item is None for r in completed if r.trial.repetition == 0):
        missing.add("flops_per_item")
    if missing:
        print(f"Error: not recorded: {', '.join(sorted(missing))}")
        return 1
    print(f"all is recorded in {len(completed)} trials")
    return 0


def _missing(record: TrialRecord, rank: RankMeasurement) -> list[str]:
    found: dict[str, object] = {}
    if record.trial.repetition == 0:  # phases are taken once per configuration
        found["phases"] = rank.phases
    if record.trial.times_without_sync:
        found["without_sync"] = rank.without_sync
    if rank.device.startswith("cuda"):
        found |= {
            "peak_device_memory_bytes": rank.peak_device_memory_bytes,
        }
    return [name for name, value in found.items() if value is None]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
