"""`dpbench explain`: a verdict, one table of factors, and causes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.diagnosis.explanation import (
    Cause,
    Explanation,
    fastest_by_work,
    slowest_of,
)
from dpbench.analysis.diagnosis.factors import (
    CONTENDED,
    IDEAL,
    LARGE_LOSS,
    PARTS,
    SHARDED,
    Factor,
    Part,
)
from dpbench.analysis.diagnosis.phases import step_phases
from dpbench.analysis.formatting import (
    AT_MOST,
    TOO_NOISY,
    clear_percentage,
    percent,
    percentage,
    plus_minus,
    ratio,
    span,
    time_text,
)
from dpbench.analysis.noise import FREE_THE_MACHINE
from dpbench.analysis.sentences import MAX_LISTED, reasons
from dpbench.errors import INCONCLUSIVE
from dpbench.report.answer import Answer, Paragraph
from dpbench.report.answers.report import tied_with
from dpbench.report.commands import next_command
from dpbench.report.table import Column, Table, keep_on_line, or_missing
from dpbench.specs.command_line import CommandLine
from dpbench.specs.nodes import node_counts

PART_WORDS: dict[Part, str] = {
    "granularity": "smaller batches take longer per sample",
    "contention": "replicas share the machine",
    "wrapper": "what the implementation does beside the plain step",
    "waiting": "all wait for the rank that is slowest in each step",
    "communication": "communication not hidden by overlap",
}
"""What a part of a step is."""
NOTE_ON_GAINS = (
    "a ratio above 1 is no loss, and there is nothing to do: the steps that it is compared with "
    "were slower, as may happen when ranks out of step compete for cores"
)
GOOD_EFFICIENCY = 0.9
"""Efficiency from which on a configuration without a large loss has nothing to fix."""
READING_NOTE = (
    "a factor is a ratio of step times; the product of a configuration's factors is its "
    "efficiency against `single`; the share is the part of the measured step that is lost to it"
)


def explanation_answer(
    analysis: Analysis,
    shown: Sequence[Explanation],
    *,
    noise: Sequence[str] = (),
    last_command: CommandLine | None = None,
    verbose: bool = False,
) -> Answer:
    """Warnings, the verdict, causes and factors of the explanations that are `shown`, the reasons
    of rows without a speed, and what to run next after the `last_command`, which has measured them.
    `noise` says which rows are too noisy to explain, and stands in the place of a verdict if those
    shown are.

    The data has all explanations, first those shown; its outcome and the exit status are then
    inconclusive.
    """
    is_explained = not shown[0].row.noisy_estimates
    remarks = [*reasons(analysis.rows), *(noise if is_explained else ())]
    shown_first = sorted(analysis.explanations, key=lambda explanation: explanation not in shown)
    others = [e for e in shown_first if not (e.row.noisy_estimates or e in shown)]
    causes = [*cause_lines(shown, named=len(shown) > 1)]
    if shown[0].is_script:
        compared = [
            f"{other.row.label}: {ratio(gain)} × as fast as {shown[0].row.label}"
            for other in others
            if other.trains_together and (gain := other.row.speedup_over(shown[0].row))
        ]
        causes = [*compared, *causes]
    if verbose:
        remarks = [READING_NOTE, *filter(None, map(_phases, shown)), *remarks]
    elif others and not shown[0].is_script:
        count = units.counted(len(others), "other configuration")
        choosing = "--implementations, --backends, --group-sizes and --batch-sizes"
        remarks.append(f"{count}: choose with {choosing}")
    table = factors_table(shown)
    if len(shown) == 1:
        table = replace(table, columns=table.columns[1:])
    best = fastest_by_work(shown)
    verdicts = [verdict_sentence(e, tied_with(e.row, analysis.fastest)) for e in best]
    verdict: Paragraph = "\n".join(verdicts) if is_explained else noise
    if not (is_explained or shown[0].is_spoiled) and (causes or table.lines):
        verdict = [*noise, "what follows compares steps within each repetition, and holds"]
    following = next_command(analysis, last_command, best[0])
    last = keep_on_line(f"Next: {following}") if following else ""
    return Answer(
        paragraphs=(analysis.warnings, verdict, causes, table, remarks, last),
        data={
            "outcome": "explained" if is_explained else "inconclusive",
            "configurations": [*map(_plain_explanation, shown_first)],
            "notes": [*analysis.warnings, *noise],
        },
        exit_status=0 if is_explained else INCONCLUSIVE,
    )


def _phases(explanation: Explanation) -> str:
    """The times of its phases in a sentence; empty if they were not measured."""
    phases = step_phases(explanation.row.usable_records)
    if phases is None or not phases.seconds:
        return ""
    listed = ", ".join(f"{name} {time_text(e)}" for name, e in phases.seconds.items())
    if phases.of_replicas:
        within = ", ".join(f"{name} {time_text(e)}" for name, e in phases.of_replicas.items())
        listed += f"; within forward and backward: {within}"
    return f"phases of {explanation.row.label}, each timed until the device is idle: {listed}"


def verdict_sentence(explanation: Explanation, ties: str = "") -> str:
    """One sentence: how much of linear scaling a configuration reaches, the `ties` with it, and
    its largest loss; of a training script "train.py on 2 ranks is 1.5 × as fast as one rank, 76 %
    of linear scaling.". What was lost on a busy machine is not named."""
    row = explanation.row
    is_script = explanation.is_script
    name = row.label
    if is_script and sum(each.traits.communicates for each in explanation.breakdowns) == 1:
        script = explanation.configuration.workload.architecture
        name = f"{script} on {units.counted(row.group_size, 'rank')}"
    if row.efficiency is None or (is_script and row.group_size == 1):
        return f"{name}: {time_text(explanation.breakdown.step_seconds)} a step."
    of_linear = f"{clear_percentage(row.efficiency)} of linear scaling"
    scaling = f"{name} reaches {of_linear} from {row.speedup_reference}"
    if is_script:
        speedup = or_missing(row.speedup, ratio)
        scaling = f"{name} is {speedup} × as fast as one rank, {of_linear}"
    if ties:
        scaling += f", and ties with {ties}"
    if explanation.is_spoiled:
        return f"{scaling}; causes are not named, as {FREE_THE_MACHINE}."
    if _is_fine(explanation):
        return f"Nothing large to fix: {scaling}."
    if is_script:  # its causes follow
        return f"{scaling}."
    losses = [cause for cause in explanation.causes if cause.standing == "loss"]
    if losses:
        perhaps = "perhaps " if losses[0].is_uncertain else ""
        return f"{scaling}; the largest loss is {perhaps}{losses[0].text}."
    if explanation.breakdown.offset_losses:
        return f"{scaling}; its losses cannot be told apart."
    large = percent(LARGE_LOSS)
    return f"{scaling}; no loss is both large ({large} of a step) and beyond the noise."


def _is_fine(explanation: Explanation) -> bool:
    """Whether a configuration scales well, and no cause is wrong or was found to cost time."""
    reached = explanation.row.efficiency
    if reached is None or reached.is_too_noisy or explanation.is_spoiled:
        return False
    is_good = explanation.is_linear or reached.value >= GOOD_EFFICIENCY
    return is_good and all(cause.standing == "not measured" for cause in explanation.causes)


def factors_table(explanations: Sequence[Explanation]) -> Table:
    """One row per configuration and factor, without those that are 1 by definition."""
    rows = [
        (explanation, factor)
        for explanation in explanations
        for factor in explanation.breakdown.factors
        if factor.value.basis != "definition"
    ]
    if all(factor.value.is_too_noisy for _, factor in rows):
        rows = []
    factors = [factor for _, factor in rows]
    notes = [NOTE_ON_GAINS] if any(factor.is_gain for factor in factors) else []
    notes += dict.fromkeys(chain.from_iterable(map(not_separated, explanations)))
    if any(e.breakdown.step_seconds.sample_size == 1 for e in explanations):
        notes.append(
            "no causes from single repetitions (n = 1), which show no noise; use --repetitions 4"
        )
    return Table(
        groups=1,
        notes=tuple(notes),
        columns=(
            Column(
                "Configuration", [explanation.row.label for explanation, _ in rows], is_text=True
            ),
            Column(
                "Factor",
                [" and ".join(factor.parts) for factor in factors],
                is_text=True,
                meaning="Part of the efficiency.",
            ),
            Column(
                "Ratio\n(< 1 = loss)",
                [ratio(factor.value) for factor in factors],
                meaning="Step time without this loss ÷ with it, no share; above 1 is no loss.",
                sort=tuple(factor.value.value for factor in factors),
            ),
            Column(
                "Share of step",
                [*map(_share_text, factors)],
                meaning="Seconds lost ÷ measured step.",
                sort=tuple(factor.share.value for factor in factors),
            ),
            Column(
                "Cause",
                [_cause_words(*row) for row in rows],
                is_text=True,
                importance=1 if len(explanations) > 1 else math.inf,
            ),
        ),
    )


def not_separated(explanation: Explanation) -> Iterator[str]:
    """Why parts of a step share a factor or have none, and what to measure."""
    row = explanation.row
    breakdown = explanation.breakdown
    if IDEAL in breakdown.missing:
        batch = f" at batch {row.batch_size}" if row.batch_size else ""
        yield (
            f"{row.label}: its factors give no efficiency, because `single`{batch} has no "
            "completed repetition in common with it"
        )
    for loss, gain in breakdown.offset_losses:
        share = percent(max(0.0, loss.share.value + gain.share.value))
        parts = " and ".join((*loss.parts, *gain.parts))
        yield f"{parts} together cost {share} of the step; what each of them costs is unclear"
    for factor in breakdown.factors:
        stages = [PARTS.index(part) for part in factor.parts[1:]]
        why = dict.fromkeys(_not_measured(stage, explanation) for stage in stages)
        if why:
            listed = f"{', '.join(factor.parts[:-1])} and {factor.parts[-1]}"
            yield f"{listed} cannot be separated: {'; '.join(why)}"


def _not_measured(stage: int, explanation: Explanation) -> str:
    """Why a stage of a step was not measured, and how it can be."""
    settings = explanation.configuration
    name = settings.implementation
    of_one_rank = (SHARDED, CONTENDED)
    if explanation.is_script and SHARDED in explanation.breakdown.missing and stage in of_one_rank:
        return "the script does not run on one rank alone"
    if stage == SHARDED:
        sizes = ",".join(map(str, sorted({*settings.replica_batch_sizes})))
        return f"no `single` at batch {sizes}; add {sizes} to --batch-sizes"
    if stage == CONTENDED:
        return "no `independent` rows; add independent to --implementations"
    if explanation.is_script:
        return "the script has no DistributedDataParallel whose averaging could be left out"
    if settings.process_count == 1:
        return f"{name} drives all replicas from one process, which has one clock"
    return f"{name} has no window without synchronization"


def _share_text(factor: Factor) -> str:
    """The share of a step that a factor costs: "lost 11 ± 7 %"."""
    if factor.value.is_too_noisy:
        return TOO_NOISY
    if factor.is_gain:
        return "no loss"
    text = percentage(factor.share)
    if text.startswith(AT_MOST) and not factor.excludes_one:
        return text.replace(AT_MOST, "at most")
    return f"lost {plus_minus(factor.share, scale=100)} %"


def _cause_words(explanation: Explanation, factor: Factor) -> str:
    """What the parts of a factor are."""
    words = {**PART_WORDS}
    traits = explanation.configuration.traits
    if not traits.communicates:
        words["waiting"] = "the slowest copy against the typical one"
    if traits.one_process:
        words["wrapper"] = "one process drives all replicas"
    return "; ".join(words[part] for part in factor.parts)


def what_to_try(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    """What to do about configurations: that there is nothing to fix, or a line for each cause."""
    fine = map(verdict_sentence, filter(_is_fine, explanations))
    return (*fine, *cause_lines(explanations, named=True))


def cause_lines(explanations: Sequence[Explanation], *, named: bool) -> Iterator[str]:
    """A line for each cause, with the remedy where it costs most, and the names of the
    configurations that it holds for if they are `named`."""
    groups: dict[tuple[object, ...], list[tuple[Cause, str]]] = {}
    for explanation in explanations:
        for cause in explanation.causes:
            key = cause.text, cause.standing, cause.is_uncertain
            groups.setdefault(key, []).append((cause, explanation.row.label))
    for group in sorted(groups.values(), key=lambda group: min(cause.order for cause, _ in group)):
        causes, labels = zip(*group, strict=True)
        worst = min(causes, key=lambda cause: cause.order)
        text = worst.text
        if worst.standing == "part of a loss":
            text += f" (a part of {' and '.join(worst.parts)})"
        if named:
            text += f" ({units.some_of(labels, MAX_LISTED)})"
        yield f"{_price(causes)} {text}. {worst.remedy}"


def _price(causes: Sequence[Cause]) -> str:
    """The cost of one cause in some configurations: "10–15 % of the step is"."""
    standing = causes[0].standing
    if standing == "wrong":
        return "wrong:"
    if standing == "not measured":
        return "cost not measured:"
    shares = [cause.share for cause in causes if cause.share is not None]
    percents = [round(100 * share.value) for share in shares]
    price = f"{span(percents)} %"
    if standing == "part of a loss":
        price = f"up to about {max(*percents, 1)} %"
    elif causes[0].is_uncertain:
        price = f"perhaps {price}, at most {percent(max(e.ends[1] for e in shares))},"
    elif len(shares) == 1:
        price = percentage(shares[0])
    return f"{price} of the step is"


def _plain_explanation(explanation: Explanation) -> dict[str, Any]:
    """The values of a configuration for programs."""
    row = explanation.row
    breakdown = explanation.breakdown
    phases = step_phases(row.usable_records)
    slowest = slowest_of(row.usable_records)
    return {
        "label": row.label,
        "implementation": row.implementation,
        "backend": row.backend or None,
        "group_size": row.group_size,
        "nodes": node_counts(row.replicas_by_node) or None,
        "batch_size": row.batch_size,
        "repetitions": breakdown.step_seconds.sample_size,
        "too_noisy": bool(row.noisy_estimates),
        "efficiency": row.efficiency and asdict(row.efficiency),
        "step_seconds": asdict(breakdown.step_seconds),
        "factors": [
            {
                "parts": list(factor.parts),
                **asdict(factor.value),
                "share_of_step": asdict(factor.share),
            }
            for factor in breakdown.factors
        ],
        "phases": phases and asdict(phases),
        "slowest_rank": slowest and asdict(slowest),
        "advice": [
            {
                "kind": cause.kind,
                "share_of_step": cause.share and cause.share.value,
                "is_bound": cause.standing == "part of a loss",
                "is_wrong": cause.standing == "wrong",
                "text": f"{cause.text}. {cause.remedy}",
            }
            for cause in explanation.causes
        ],
        "notes": list(not_separated(explanation)),
    }
