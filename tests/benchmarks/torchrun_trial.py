"""One rank of a trial that torchrun started; writes the seconds of its windows."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dpbench.codec import decode
from dpbench.measure.trial import measure
from dpbench.specs import TrialSpec


def main(specification: Path, prepared: Path, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    trial = decode(TrialSpec, json.loads(specification.read_text()))
    measurement = measure(trial, prepared, rank).measurement
    assert measurement is not None
    assert measurement.without_sync is not None
    seconds = measurement.timed.seconds + measurement.without_sync.seconds
    (folder / f"rank{rank}.seconds").write_text(str(seconds))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
