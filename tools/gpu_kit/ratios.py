"""What a wrapper costs at one replica: images/s of each against the plain module and torch's.

Run as `python -m tools.gpu_kit.ratios FOLDER`; fails where a whole interval is above the limit.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from dpbench.analysis.estimate import ratio
from dpbench.report.values import write
from dpbench.store import load

LIMITS = {("single", "ddp"): 1.01, ("torch-ddp", "ddp"): 1.00}
"""Step time of the second ÷ that of the first."""


def main(folder: str) -> int:
    seconds: dict[str, list[float]] = defaultdict(list)
    for record in load(Path(folder)).records:
        if record.ranks:
            steps = record.ranks[0].timed.step_seconds
            seconds[record.trial.implementation].append(sum(steps) / len(steps))
    status = 0
    for (baseline, name), limit in LIMITS.items():
        if not seconds[baseline] or not seconds[name]:
            print(f"Error: no trial of {baseline} or {name} has completed")
            status = 1
            continue
        found = ratio(seconds[name], seconds[baseline])
        status |= found.low is not None and found.low > limit
        print(f"step of {name} ÷ {baseline}: {write(found, 'ratio')}, wanted <= {limit}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
