"""Rows for other programs, of any level of detail, as CSV and JSON.

Texts may come from records, so none of them is a formula in a spreadsheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench import store, units
from dpbench.analysis.subject import Subject
from dpbench.errors import UsageError
from dpbench.records.environment import environment_line
from dpbench.records.trial import TrialRecord
from dpbench.report.answer import json_text
from dpbench.report.layout import table_document
from dpbench.report.table import MISSING, Table, column
from dpbench.specs.traits import SINGLE

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_text(frame: pd.DataFrame) -> str:
    """A header of keys and one line per row; missing values are empty. An apostrophe stands before
    every text that a spreadsheet would compute."""
    from pandas.api.types import is_numeric_dtype

    def inert(value: Any) -> Any:
        is_formula = isinstance(value, str) and value.startswith(_FORMULA)
        return f"'{value}" if is_formula else value

    # Only the categories of a categorical column are seen; millions of steps share them.
    texts = {
        name: column.map(inert, na_action="ignore")
        for name, column in frame.items()
        if not is_numeric_dtype(column.dtype)
    }
    return str(frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def frame_json(frame: pd.DataFrame) -> str:
    """An array with one object per row; missing values are null and infinity is the text "inf"."""
    plain = frame.astype(object).where(frame.notna(), None)
    plain = plain.replace({math.inf: "inf", -math.inf: "-inf"})
    return json_text(plain.to_dict("records"))


def level_frame(path: Path, level: str) -> tuple[pd.DataFrame, tuple[str, ...], tuple[str, ...]]:
    """The rows of a level below the configuration, with notes on trials that have none, and
    warnings about data that could not be read. Raises StoreError."""
    from dpbench.analysis import frames

    if level == "collective":
        found = store.load_collectives(path)
        return frames.collective_frame(found.records), (), found.warnings
    readers: dict[str, Callable[[Iterable[TrialRecord]], pd.DataFrame]] = {
        "trial": frames.trial_frame,
        "rank": frames.rank_frame,
        "step": frames.step_frame,
    }
    sweep = store.load(path)
    last = {record.trial: record for record in sweep.records}
    empty = sum(not record.ranks for record in last.values())
    trials = units.counted(len(last), "trial")
    note = f"{empty} of {trials} measured nothing and have no row; --level trial has the reason"
    notes = (note,) if empty and level != "trial" else ()
    return readers[level](sweep.records), notes, sweep.warnings


def frame_text(frame: pd.DataFrame, format: str) -> str:
    """The rows in any format but that of terminals; tables have numbers to six digits."""
    from pandas.api.types import is_numeric_dtype

    if format in ("csv", "json"):
        return csv_text(frame) if format == "csv" else frame_json(frame)

    def write(value: Any) -> str:
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    plain = frame.astype(object).where(frame.notna(), MISSING)
    columns = (
        column(str(name), map(write, plain[name]), is_text=not is_numeric_dtype(dtype))
        for name, dtype in frame.dtypes.items()
    )
    return f"{table_document(Table(columns=tuple(columns)), format)}\n"


def submission(subject: Subject) -> str:
    """The rows that have a speed as CSV, to be added to a file of `results/published/`.

    Raises UsageError for a published table, for strong scaling, and if no row has a speed.
    """
    import pandas as pd

    sweep = subject.sweep
    if sweep is None:
        raise UsageError(f"{subject.name}: --format submission needs a sweep's results folder")
    machine = environment_line(
        sweep.environments, {record.environment_id for record in sweep.records}
    )
    accelerators = {len(one.accelerators) for one in sweep.environments.values()}
    lines = []
    for row in subject.rows:
        trial = row.trial
        if trial is None or row.throughput is None:
            continue
        if trial.scaling == "strong":
            raise UsageError(
                f"{subject.name}: published tables have a fixed batch per replica; "
                "--format submission takes no strong scaling"
            )
        # Readers find by its name what the speedups of other rows are relative to.
        name = f"{trial.workload.architecture} {row.implementation_label}"
        on_gpus = trial.devices[0].startswith("cuda") and len(accelerators) == 1
        lines.append(
            {
                "source": machine,
                "implementation": row.implementation if row.implementation == SINGLE else name,
                "backend": row.backend,
                "batch_per_gpu": row.batch_size,
                "scaling": "weak",
                "gpus_per_node": next(iter(accelerators)) if on_gpus else None,
                "gpus": row.group_size,
                "images_per_second": round(row.throughput.value, 3),
                "item": row.item,
            }
        )
    if not lines:
        raise UsageError(f"{subject.name}: no row has a speed")
    frame = pd.DataFrame(lines).astype({"gpus_per_node": "Int64", "batch_per_gpu": "Int64"})
    return csv_text(frame)
