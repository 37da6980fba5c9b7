"""What a training script does that makes it slow, as it was seen, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench.analysis.diagnosis.factors import Factors, Part
from dpbench.records.trial import ScriptFacts, TrialRecord

LARGE = 0.05
"""Smallest share of a step that an input pipeline is blamed for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """Something in a script that costs time, or that is wrong."""

    kind: str
    text: str
    """A sentence without its period; empty where the report has numbers for it."""
    remedy: str


def symptoms(records: Sequence[TrialRecord], factors: Factors) -> tuple[Symptom, ...]:
    """The symptoms of a script, from the usable repetitions of one row."""
    facts = [rank.script for record in records for rank in record.ranks if rank.script]
    return (*_input_pipeline(facts, factors), *_reductions(facts)) if facts else ()


def _input_pipeline(facts: Sequence[ScriptFacts], factors: Factors) -> Iterator[Symptom]:
    found, first = factors.input, facts[0]
    certain = found is not None and found.share.low is not None and found.share.low > 0
    if found is None or not certain or found.share.value < LARGE:
        return
    wanted = ["num_workers=…"]
    wanted += ["persistent_workers=True"] * (not first.keeps_workers)
    wanted += ["pin_memory=True"] * (not first.pins_memory)
    yield Symptom(
        kind="input pipeline",
        text="",
        remedy=f"DataLoader({', '.join(wanted)}); this run had num_workers={first.loader_workers}",
    )


def _reductions(facts: Sequence[ScriptFacts]) -> Iterator[Symptom]:
    per_step = fmean(one.reducing_forwards / one.steps for one in facts)
    if per_step >= 1.5:
        yield Symptom(
            kind="reductions",
            text=f"Gradients are averaged {per_step:.3g} times per optimizer step",
            remedy="with model.no_sync(): around forward and backward of all micro-steps but the "
            "last, which then averages them once",
        )


def script_words(kind: Part) -> tuple[str, str]:
    """A loss, and its remedy in a script."""
    if kind == "wrapper":
        return (
            "what a rank does beside its own training (hooks, buckets, other collectives)",
            "try a larger batch, or gradient accumulation with no_sync()",
        )
    return (
        "exposed communication",
        "try a larger batch, gradient accumulation with no_sync(), or a faster backend",
    )
