"""Notes below a table that are needed to read its numbers rightly, and warnings before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.steadiness import steadiness, too_noisy

Rows = Sequence[ConfigurationSummary]

LISTED = 8
"""Configurations that a line names; the rest are counted and stand in the table."""
SCALING = frozenset({"speedup", "efficiency"})
MEMORY = frozenset({"peak_memory_bytes"})
LOSSES = frozenset({"final_loss", "loss_delta_per_step"})
TIME_TO_LOSS = frozenset({"time_to_loss_seconds"})


def footnotes(rows: Rows, columns: Collection[str]) -> tuple[str, ...]:
    """How to read the columns, by their keys; what did not complete, all notes."""
    explained: tuple[tuple[frozenset[str], Callable[[Rows], Iterable[str]]], ...] = (
        (SCALING, _scaling),
        (MEMORY, _memory),
        (LOSSES, _losses),
        (TIME_TO_LOSS, _time_to_loss),
    )
    return (
        *intervals(rows),
        *(line for keys, lines in explained if keys & set(columns) for line in lines(rows)),
        *_local_steps(rows),
        *_learning_rates(rows),
        *_outliers(rows),
        *steadiness(rows, _some_of),
        *too_noisy(rows, _some_of),
        *reasons(rows),
        *_notes(rows),
    )


def _notes(rows: Rows) -> Iterable[str]:
    """The notes of all rows; rows with the same one share it."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            about, text = row.label, note.removeprefix(f"{row.label}: ")
            labels = groups.setdefault(one_line(text), [])
            if text != note and about not in labels:
                labels.append(about)
    for text, labels in groups.items():
        yield f"{_some_of(labels)}: {text}" if labels else text


def reasons(rows: Rows) -> tuple[str, ...]:
    """The full reason of every configuration that has one; equal reasons share a line."""
    groups: dict[tuple[Status, str], list[str]] = {}
    for row in rows:
        if row.reason or row.status is Status.WRONG_GRADIENTS:
            groups.setdefault((row.status, one_line(row.reason or "")), []).append(row.label)
    return tuple(
        f"{status.words}, {_some_of(labels)}{f': {reason}' if reason else ''}"
        for (status, reason), labels in groups.items()
    )


def intervals(rows: Rows) -> Iterable[str]:
    """Notes on the meaning of ±, and on numbers without an interval."""
    speeds = [e for row in rows for e in (row.throughput, row.duration) if e is not None]
    by_basis = {
        basis: [speed for speed in speeds if speed.basis == basis]
        for basis in ("repetitions", "step batches", "single value")
    }
    if repeated := by_basis["repetitions"]:
        yield (
            f"± is the {units.exact_percent(repeated[0].confidence)} interval over "
            f"{_sizes(repeated)} repetitions (t; of speeds and speedups on logarithms), "
            "or (low–high) where it is not symmetric"
        )
    if batched := by_basis["step batches"]:
        rest = "" if len(batched) == len(speeds) else f" of {len(batched)} of the rows"
        yield (
            f"the {units.exact_percent(batched[0].confidence)} interval{rest} is from "
            f"{_sizes(batched)} batches of steps of one repetition: the noise within a run, not "
            "between runs; other numbers of those rows are single values (n = 1)"
        )
    if single := by_basis["single value"]:
        which = "numbers" if len(single) == len(speeds) else f"speeds of {len(single)} of the rows"
        yield f"{which} without ± are single values (n = 1) without an interval"


def _scaling(rows: Rows) -> Iterable[str]:
    larger = [(row, row.speedup) for row in rows if row.speedup and row.group_size > 1]
    if not larger:
        return
    kept = {row.configuration.scaling for row in rows if row.configuration} or {"weak"}
    batch = " (weak) or ".join(
        words
        for scaling, words in (("weak", "batch per replica"), ("strong", "global batch"))
        if scaling in kept
    )
    if len(kept) > 1:
        batch += " (strong)"
    if any(row.duration for row in rows):
        batch = "work"
    yield (
        "speedup is against the same implementation and backend at group size 1 and the same "
        f"{batch}; efficiency = speedup ÷ group size"
    )
    measured = [(row, gain) for row, gain in larger if gain.interval is not None]
    if none := [row.label for row, gain in measured if gain.contains(1.0)]:
        yield f"not distinguishable from no speedup (the interval contains 1): {_some_of(none)}"
    if beyond := [row.label for row, gain in larger if gain.ends[0] > row.group_size]:
        yield f"faster than linear, look for a slow baseline or a cache effect: {_some_of(beyond)}"


def _memory(rows: Rows) -> Iterable[str]:
    kinds = {row.peak_memory_kind for row in rows if row.peak_memory_kind}
    words = {"device": "allocated on the device", "host": "resident on the host (whole process)"}
    if kinds:
        what = " or, for rows on another device, ".join(words[kind] for kind in sorted(kinds))
        yield f"peak memory is the largest over ranks, {what}"


def _outliers(rows: Rows) -> Iterable[str]:
    found = [
        f"{row.label}: {row.steps.outliers} of {row.steps.count}, "
        f"up to {row.steps.slowest_outlier:.2g} × the median"
        for row in rows
        if row.steps and row.steps.slowest_outlier
    ]
    if found:
        yield f"steps that are outliers (more than 10 σ slow; counted, kept): {_some_of(found)}"


def _local_steps(rows: Rows) -> Iterable[str]:
    every = {row.implementation: row.configuration.sync_every for row in rows if row.configuration}
    for name, steps in every.items():
        if steps > 1:
            yield (
                f"{name} averages parameters every {steps} steps, gradients never: another "
                "optimisation than ddp, so that a higher speed buys less progress per step"
            )


def _learning_rates(rows: Rows) -> Iterable[str]:
    """Learning rates that a rule scaled; the other rows have the rate that was asked for."""
    scaled: dict[str, set[float]] = {}
    for row in rows:
        if row.learning_rate is not None and row.learning_rate_rule not in (None, "none"):
            scaled.setdefault(str(row.learning_rate_rule), set()).add(row.learning_rate)
    for rule, rates in scaled.items():
        listed = " to ".join(f"{rate:g}" for rate in dict.fromkeys((min(rates), max(rates))))
        yield (
            f"learning rates of {listed} follow the samples behind an optimizer step ({rule} "
            "rule, no warm-up)"
        )


def _losses(rows: Rows) -> Iterable[str]:
    if any(row.repetitions > 1 and _is_single(row["final_loss"]) for row in rows):
        yield "losses that repeat, as those of equal seeds do, are one value without an interval"


def _time_to_loss(rows: Rows) -> Iterable[str]:
    timed = [(row, row["time_to_loss_seconds"]) for row in rows if row["time_to_loss_seconds"]]
    if timed:
        yield (
            f"time to loss is from the opening of the timed window, warmup left out, until the "
            f"smoothed loss stays at {timed[0][1].target_loss:g} or below"
        )
    missed = [
        f"{row.label} ({found.censored} of {found.repetitions})"
        for row, found in timed
        if found.censored
    ]
    if missed:
        yield f"the loss {timed[0][1].target_loss:g} was not reached by: {_some_of(missed)}"


def _is_single(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.basis == "single value"


def _sizes(estimates: Sequence[Estimate]) -> str:
    return units.span(estimate.sample_size for estimate in estimates)


def _some_of(labels: Sequence[str]) -> str:
    return units.some_of(labels, LISTED, "configuration")


def warnings(subject: Subject) -> tuple[str, ...]:
    """Warnings as lines, in the same order wherever results are shown or read."""
    return tuple(dict.fromkeys(_warnings(subject)))


def _warnings(subject: Subject) -> Iterator[str]:
    for stored in (subject.sweep, subject.collectives):
        yield from () if stored is None else stored.warnings
    yield from _doubts(subject)
    yield from subject.warnings
    yield from steadiness(subject.rows, _some_of)


def _doubts(subject: Subject) -> Iterator[str]:
    """Which gradients were wrong, and which nobody checked."""
    if wrong := [row.label for row in subject.rows if row.verified is False]:
        yield f"wrong gradients, and no speed of theirs counts: {_some_of(wrong)}"
    unchecked = [
        row.label
        for row in subject.rows
        if row.configuration and row.throughput and row.verified is None
    ]
    if unchecked:
        yield f"gradients were not compared with one process: {_some_of(unchecked)}"
