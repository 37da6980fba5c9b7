"""`dpbench explain`: a verdict, one table of factors, and causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from dpbench import units
from dpbench.analysis.diagnosis.causes import Cause
from dpbench.analysis.diagnosis.explanation import Explanation, not_too_noisy
from dpbench.analysis.diagnosis.factors import LARGE, Part
from dpbench.analysis.noise import MAX_ADVISED, WAS_BUSY
from dpbench.analysis.rows import MAX_LISTED, Row
from dpbench.analysis.throughput import items_per_second
from dpbench.errors import INCONCLUSIVE
from dpbench.report.answer import Answer, Paragraph, plain_estimate
from dpbench.report.formatting import NOISY, percentage, time_text, write
from dpbench.report.notes import reasons
from dpbench.report.progress.trials import speed
from dpbench.report.table import Table, column, text_column
from dpbench.specs.traits import IMPLEMENTATIONS

COSTS: dict[Part, str] = {
    "granularity": "smaller batches take longer per sample",
    "contention": "replicas share the machine",
    "wrapper": "hooks and buckets",
    "waiting": "all wait for the rank that is slowest in each step",
    "communication": "communication not hidden by overlap",
}
NOTHING_LARGE = f"no loss is both large ({units.percent(LARGE)} of a step) and beyond the noise"
READING = (
    "a factor is a ratio of step times; the product of a configuration's factors is its "
    "efficiency against `single`; the share is the part of the measured step that is lost to it"
)


def explanation_answer(
    explanations: Sequence[Explanation],
    *,
    shown: Sequence[Explanation] | None = None,
    rows: Sequence[Row] = (),
    first: Sequence[str] = (),
    notes: Sequence[str] = (),
    verbose: bool = False,
) -> Answer:
    """The verdict, factors and causes of the explanations that are `shown`, all unless given.

    `rows` are those that were asked for, of which those without a speed are listed with their
    reasons; `first` are warnings. The data has all explanations; its outcome and the exit status
    are inconclusive if everything shown is too noisy.
    """
    chosen = explanations if shown is None else shown
    is_script = bool(chosen and chosen[0].configuration.workload.script)
    remarks = [*factor_notes(chosen), *reasons(rows), *notes]
    others = sum(explanation not in chosen for explanation in not_too_noisy(explanations))
    if verbose:
        phases = []
        for explanation in chosen:
            of_step = explanation.phases.seconds if explanation.phases else {}
            listed = [", ".join(f"{name} {time_text(e)}" for name, e in of_step.items())]
            if explanation.phases and (parts := explanation.phases.of_replicas):
                within = ", ".join(f"{name} {time_text(e)}" for name, e in parts.items())
                listed.append(f"within forward and backward: {within}")
            if of_step:
                phases.append(
                    f"phases of {explanation.row.label}, each timed until the device is idle: "
                    f"{'; '.join(listed)}"
                )
        remarks = [READING, *phases, *remarks]
    elif others and not is_script:
        remarks.append(
            f"{units.counted(others, 'other configuration')}: choose with --implementations, "
            "--backends, --group-sizes and --batch-sizes"
        )
    table = factors_table(chosen)
    shorter = table.without(["Configuration"]) if len(chosen) == 1 else table
    is_explained = bool(not_too_noisy(chosen))
    body: list[Paragraph] = [shorter, [*cause_lines(chosen)]]
    return Answer(
        paragraphs=(first, *map(main_cause, chosen[:1]), *body[:: -1 if is_script else 1], remarks),
        data={
            "outcome": "explained" if is_explained else "inconclusive",
            "configurations": [_plain(explanation) for explanation in explanations],
            "notes": [*first, *notes],
        },
        exit_status=0 if is_explained else INCONCLUSIVE,
    )


def main_cause(explanation: Explanation) -> str:
    """One sentence: how much of linear scaling a configuration reaches, and its largest loss; of a
    training script "train.py on 2 ranks: 1.5 × as fast as one rank, 76 % of linear scaling.". Or
    what varied too much to say so, how many repetitions would do, and what holds nevertheless."""
    configuration, row, breakdown = (
        explanation.configuration,
        explanation.row,
        explanation.breakdown,
    )
    if explanation.too_noisy:
        return " ".join(_noise(explanation))
    step = f"{time_text(breakdown.step_seconds)} a step"
    if configuration.workload.script:
        subject = (
            f"{configuration.workload.architecture} on {units.counted(row.group_size, 'rank')}"
        )
        if row.speedup is None or breakdown.efficiency is None or row.group_size == 1:
            return f"{subject}: {step}."
        efficiency = write(breakdown.efficiency, "percent")
        speedup = write(row.speedup, "ratio")
        return f"{subject}: {speedup} × as fast as one rank, {efficiency} of linear scaling."
    reached = f"takes {step}"
    if row.efficiency is not None:
        efficiency = write(row.efficiency, "percent")
        reached = f"reaches {efficiency} of linear scaling from {row.speedup_reference}"
    losses = [cause.text for cause in explanation.causes if cause.share and not cause.is_bound]
    loss = f"the largest significant loss is {losses[0]}" if losses else NOTHING_LARGE
    return f"{row.label} {reached}; {loss}."


def _noise(explanation: Explanation) -> Iterator[str]:
    """Sentences on a configuration without an efficiency."""
    rows = [row for row in (explanation.row, explanation.reference) if row.records]
    of_rows = [(row, sorted(map(items_per_second, row.records))) for row in rows]
    wild, speeds = max(of_rows, key=lambda pair: pair[1][-1] / pair[1][0])
    yield (
        f"No efficiency: {wild.label} varied from {speed(speeds[0])} to {speed(speeds[-1])} "
        f"{wild.item}/s between {units.counted(len(speeds), 'repetition')}."
    )
    needed = explanation.repetitions_needed
    if explanation.is_disturbed:
        yield f"{WAS_BUSY.capitalize()}."
    elif needed is None:
        yield f"Not even {MAX_ADVISED} repetitions like these would give one."
    else:
        yield f"About {needed} repetitions like these would give one."
    if explanation.causes or factors_table([explanation]).lines:
        yield "What follows compares steps within each repetition, and holds."


def factors_table(explanations: Sequence[Explanation]) -> Table:
    """One row per configuration and factor, without those that are 1 by definition."""
    rows = []
    for explanation in explanations:
        costs = dict(COSTS)
        if not explanation.communicates:
            costs["waiting"] = "the slowest copy against the typical one"
        if IMPLEMENTATIONS[explanation.configuration.implementation].one_process:
            costs["wrapper"] = "one process drives all replicas"
        for factor in explanation.breakdown.factors:
            if factor.value.basis != "baseline":
                causes = "; ".join(costs[part] for part in factor.parts)
                rows.append((explanation.row.label, factor, causes))
    if all(factor.value.is_too_noisy for _, factor, _ in rows):
        rows = []
    is_one = len(explanations) == 1
    return Table(
        caption="Factors of efficiency",
        groups=1,
        columns=(
            text_column("Configuration", [label for label, _, _ in rows]),
            text_column(
                "Factor",
                [" and ".join(factor.parts) for _, factor, _ in rows],
                meaning="Part of the efficiency; a ratio above 1 is a gain.",
                folds=is_one,
            ),
            column(
                "Ratio",
                [write(factor.value, "ratio") for _, factor, _ in rows],
                meaning="Step time without this loss ÷ with it.",
                sort=tuple(factor.value.value for _, factor, _ in rows),
            ),
            column(
                "Share of step",
                [
                    NOISY if factor.value.is_too_noisy else percentage(factor.share)
                    for _, factor, _ in rows
                ],
                meaning="Seconds lost ÷ measured step; negative for a gain.",
                sort=tuple(factor.share.value for _, factor, _ in rows),
            ),
            text_column(
                "Cause",
                [causes for _, _, causes in rows],
                folds=is_one,
                leaves=0 if is_one else 1,
            ),
        ),
    )


def factor_notes(explanations: Sequence[Explanation]) -> Iterator[str]:
    """Notes on parts that could not be separated."""
    notes = (explanation.undetermined for explanation in explanations)
    yield from dict.fromkeys(chain.from_iterable(notes))


def cause_lines(explanations: Sequence[Explanation], *, counts_rows: bool = False) -> Iterator[str]:
    """A line for each cause, with the configurations that it holds for, or how many they are:
    first what is wrong, then the largest loss, last what was not measured."""
    groups: dict[tuple[str, str], list[tuple[Row, Cause]]] = {}
    for explanation in explanations:
        for cause in explanation.causes:
            groups.setdefault((cause.text, cause.remedy), []).append((explanation.row, cause))
    for group in sorted(groups.values(), key=lambda group: min(cause.order for _, cause in group)):
        rows, causes = zip(*group, strict=True)
        which = units.some_of([row.label for row in rows], MAX_LISTED)
        if counts_rows and len(rows) > 1:
            which = units.counted(len(rows), "row")
        is_of_script = explanations[0].configuration.workload.script and len(explanations) == 1
        text = f"{_price(causes)} {causes[0].text}: {causes[0].remedy}"
        yield text if is_of_script else f"{text} ({which})"
    if any(explanation.breakdown.step_seconds.sample_size == 1 for explanation in explanations):
        yield "no causes from single repetitions (n = 1), which show no noise; use --repetitions 4"


def _price(causes: Sequence[Cause]) -> str:
    """The cost of one cause in some configurations: "10–15 % of the step is"."""
    shares = [cause.share for cause in causes if cause.share is not None]
    if causes[0].is_wrong:
        return "wrong:"
    if not shares:
        return "cost not measured:"
    if causes[0].is_bound:
        most = max(share.value for share in shares)
        return f"up to about {max(round(100 * most), 1)} % of the step is"
    if len(shares) == 1:
        return f"{percentage(shares[0])} of the step is"
    return f"{units.span(round(100 * share.value) for share in shares)} % of the step is"


def _plain(explanation: Explanation) -> dict[str, Any]:
    row, breakdown, slowest = explanation.row, explanation.breakdown, explanation.slowest_rank
    return {
        "label": row.label,
        "implementation": row.implementation,
        "backend": row.backend,
        "group_size": row.group_size,
        "nodes": list(row.replicas_by_node),
        "batch_size": row.batch_size,
        "repetitions": len(breakdown.repetitions),
        "too_noisy": bool(explanation.too_noisy),
        "efficiency": plain_estimate(row.efficiency),
        "step_seconds": plain_estimate(breakdown.step_seconds),
        "factors": [
            {
                "parts": list(factor.parts),
                **(plain_estimate(factor.value) or {}),
                "share_of_step": plain_estimate(factor.share),
            }
            for factor in breakdown.factors
        ],
        "phases": explanation.phases and asdict(explanation.phases),
        "slowest_rank": slowest and asdict(slowest),
        "advice": [
            {
                "kind": cause.kind,
                "share_of_step": cause.share and cause.share.value,
                "is_bound": cause.is_bound,
                "is_wrong": cause.is_wrong,
                "text": f"{cause.text}: {cause.remedy}",
            }
            for cause in explanation.causes
        ],
        "notes": list(explanation.undetermined),
    }
