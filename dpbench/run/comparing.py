"""`dpbench compare`, and the sides that `compare` and `check` read from results folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from dpbench.analysis.comparisons.comparison import compare_sides
from dpbench.analysis.comparisons.matching import RUN_IDENTITY, Side
from dpbench.analysis.comparisons.verdict import classify
from dpbench.errors import UsageError
from dpbench.folders import Sweep, load_sweep
from dpbench.messages import warn
from dpbench.options.reading import read_value
from dpbench.options.results import CompareOptions
from dpbench.options.sweep import SweepOptions
from dpbench.report.answer import Answer
from dpbench.report.answers.compare import comparison_answer
from dpbench.specs import AXES


def compare(options: CompareOptions) -> Answer:
    """Compare two sweeps, or parts of them. Raises NotComparable, UsageError and FileError."""
    (baseline, candidate), warnings = load_sides(options.baseline, options.candidate)
    warn(*warnings)
    compared = compare_sides(baseline, candidate, options.metric, force=options.force)
    return comparison_answer(classify(compared, within=options.within), within=options.within)


def load_sides(*texts: str) -> tuple[list[Side], list[str]]:
    """Load the sides of a comparison, each DIR or DIR:key=value,…, and what could not be read.

    Raises UsageError for an invalid selection, FileError for a folder that cannot be read.
    """
    loaded: dict[Path, Sweep] = {}
    sides, warnings = [], list[str]()
    for text in texts:
        folder, parts = split_selection(text)
        path = folder.resolve()
        if path not in loaded:
            loaded[path] = load_sweep(folder)
            warnings += loaded[path].warnings
        sweep = loaded[path]
        sides.append(Side(label=text, sweep=sweep, where=_selected(text, parts, sweep)))
    return sides, warnings


def split_selection(text: str) -> tuple[Path, list[str]]:
    """The folder and the parts of the selection of its rows, which follows the first colon after a
    folder that is there, or else the first of all."""
    ends = [place for place, letter in enumerate(text) if letter == ":"]
    if not ends or Path(text).is_dir():
        return Path(text), []
    end = next((place for place in ends if Path(text[:place]).is_dir()), ends[0])
    return Path(text[:end]), text[end + 1 :].split(",")


def _selected(text: str, parts: Sequence[str], sweep: Sweep) -> dict[str, str]:
    """The values of settings that select rows of the sweep. Raises UsageError for a selection that
    is not key=value[,key=value]."""
    architectures = {record.configuration.workload.architecture for record in sweep.records}
    where: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        # An option of an architecture may be called like a setting.
        longer = f"{where.get('architecture')},{part}"
        is_known = any(f"{name},".startswith(f"{longer},") for name in architectures)
        if [*where][-1:] == ["architecture"] and (is_known or key not in RUN_IDENTITY):
            where["architecture"] = longer
            continue
        if not (key and equals and value):
            raise UsageError(f"{text}: {part!r} is not key=value; write e.g. DIR:backend=gloo")
        if key in where:
            raise UsageError(f"{text}: {key} is given twice; give it one value")
        where[key] = value
    return {key: _as_written(key, value) for key, value in where.items()}


def _as_written(key: str, text: str) -> str:
    """A value as `typed_value` writes it: "0.01" for "0.010", "f32" for "fp32". Text that the
    option of a sweep does not read stays as it is, and no trial has it."""
    if key not in AXES:
        return text
    axis = AXES[key]
    field = SweepOptions.model_fields[axis.option]
    try:
        values = read_value(key, Annotated[field.annotation, *field.metadata], text)
    except UsageError:
        return text
    return axis.text(values)
