"""Hold-outs as a CSV file: what a band is calibrated on, and what anyone may append to.

Columns series, trained_up_to, group_size, measured, predicted; both throughputs in the same unit.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from dpbench.analysis.csv_cells import read_table
from dpbench.analysis.laws.band import (
    FEWEST_HOLD_OUTS,
    Misspecification,
    calibrated,
    published_misspecification,
)
from dpbench.analysis.laws.holdout import LAW, HoldOut
from dpbench.errors import StoreError

COLUMNS = ("series", "trained_up_to", "group_size", "measured", "predicted")


def as_csv(cases: Sequence[HoldOut]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case in cases:
        speeds = (f"{value:.6g}" for value in (case.measured, case.predicted[LAW]))
        writer.writerow([case.series, case.trained_up_to, case.group_size, *speeds])
    return text.getvalue()


def misspecification_from(path: Path) -> Misspecification:
    """The error of the law beyond the data as a file of hold-outs has it.

    Raises StoreError for a file that is not one, or of too few hold-outs.
    """
    names, lines = read_table(path)
    if missing := [name for name in COLUMNS if name not in names]:
        raise StoreError(
            f"{path}, line 1: expected a column {missing[0]!r}, got {names}; "
            "dpbench published --residuals FILE writes such a file"
        )
    residuals = []
    for line in lines:
        factor = line.whole("group_size") / line.whole("trained_up_to")
        if factor <= 1:
            raise line.error("group_size", "more than trained_up_to")
        error = math.log(line.positive("predicted") / line.positive("measured"))
        residuals.append(error / math.sqrt(math.log2(factor)))
    if len(residuals) < FEWEST_HOLD_OUTS:
        raise StoreError(
            f"{path}: {len(residuals)} hold-outs; a band of 90 % takes at least "
            f"{FEWEST_HOLD_OUTS}; append your own to those of published tables"
        )
    return Misspecification(
        beyond=calibrated(residuals, source=path.name),
        between=published_misspecification().between,
    )
