"""What `dpbench explain` says of a training script before the factors."""

from __future__ import annotations

from dpbench import units
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.script import Symptom
from dpbench.report.numbers import percentage, time_text
from dpbench.report.terminal import filled
from dpbench.report.values import write


def script_verdict(explained: Explanation) -> str:
    """One sentence: "train.py on 2 ranks: 1.5 × one rank, 76 % of linear scaling."."""
    trial, row, factors = explained.trial, explained.row, explained.factors
    subject = f"{trial.workload.architecture} on {units.counted(trial.group_size, 'rank')}"
    if row.speedup is None or factors.efficiency is None or trial.group_size == 1:
        return f"{subject}: {time_text(factors.step_seconds)} a step."
    speedup = write(row.speedup, "ratio")
    efficiency = write(factors.efficiency, "percent")
    return f"{subject}: {speedup} × one rank, {efficiency} of linear scaling."


def symptom_lines(explained: Explanation) -> str:
    """Each symptom, with what to try on a line of its own."""
    lines = []
    for symptom in explained.symptoms:
        lines.append(filled(f"{_sentence(symptom, explained)}."))
        lines.append(f"  Try: {symptom.remedy}.")
    return "\n".join(lines)


def _sentence(symptom: Symptom, explained: Explanation) -> str:
    found = explained.factors.input
    if symptom.text or found is None:
        return symptom.text
    return (
        f"Input pipeline: {percentage(found.share)} of the step. With the batch kept in memory a "
        f"step takes {time_text(found.cached_seconds)} instead of "
        f"{time_text(explained.factors.step_seconds)}"
    )
