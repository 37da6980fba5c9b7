"""Whether runs that should follow the same loss curve agree.

With SGD at a fixed global batch, the gradient of a step is the mean over the same samples, whatever
the number of replicas and the implementation. So the losses may differ by rounding only. Dropout
and batch normalisation break that between group sizes, as each replica draws masks and takes
statistics of its own; between implementations with the same shards nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis.losses.loss_curve import (
    AGREEMENT_STEPS,
    AGREEMENT_TOLERANCE,
    is_finite,
    losses,
    max_relative_difference,
)
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

NAMED = 4
"""Most configurations that a note names; the rest are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossAgreement:
    """The comparison of runs that consumed the same samples in the same order."""

    labels: tuple[str, ...]
    same_split: bool
    """Whether the runs split their global batch alike, and differ in their implementation only."""
    global_batch_size: int
    steps: int
    """Number of compared timed steps."""
    max_relative_difference: float
    """Largest value over steps of (largest - smallest loss) ÷ mean loss."""

    @property
    def agrees(self) -> bool:
        return self.max_relative_difference <= AGREEMENT_TOLERANCE

    @property
    def is_error(self) -> bool:
        """Whether only a wrong reduction can explain it."""
        return not self.agrees and self.same_split


def loss_agreements(records: Sequence[TrialRecord]) -> tuple[LossAgreement, ...]:
    """One comparison for each global batch on which several configurations trained.

    If they disagree, there is also one for each way of splitting the batch that several of them
    share: it distinguishes a wrong reduction from a model that is random or sees its shard as a
    whole.
    """
    found = []
    for group in _groups(filter(_is_comparable, records), _same_work).values():
        splits = _groups(group, lambda trial: (trial.group_size, trial.process_count))
        whole = _agreement(group, same_split=len(splits) == 1)
        found.append(whole)
        if whole is not None and not whole.agrees and len(splits) > 1:
            found += [_agreement(part, same_split=True) for part in splits.values()]
    return tuple(one for one in found if one is not None)


def agreement_notes(agreements: Sequence[LossAgreement]) -> list[str]:
    """The checks as lines below a table: one for all that agree, one for all whose group sizes
    differ, one for each error."""
    notes = []
    if agreeing := [one for one in agreements if one.agrees]:
        difference = max(one.max_relative_difference for one in agreeing)
        how = f"agree to {difference:.0e}" if difference else "are equal"
        notes.append(
            f"losses of configurations that train on the same samples {how} {_extent(agreeing)}, "
            "as expected"
        )
    if differing := [one for one in agreements if not one.agrees and not one.is_error]:
        notes.append(
            f"losses {_differ(differing)} between group sizes or processes (tolerance "
            f"{units.percent(AGREEMENT_TOLERANCE)}): expected of dropout and batch normalization, "
            "which see one replica's samples; an error in models without them"
        )
    for one in agreements:
        if one.is_error:
            notes.append(
                f"the losses of {units.some_of(one.labels, NAMED, 'configuration')} "
                f"{_differ([one])} (tolerance {units.percent(AGREEMENT_TOLERANCE)}) although they "
                "split it alike: a reduction is wrong"
            )
    return notes


def _differ(agreements: Sequence[LossAgreement]) -> str:
    worst = max(one.max_relative_difference for one in agreements)
    return f"differ by up to {units.percent(worst)} {_extent(agreements)}"


def _extent(agreements: Sequence[LossAgreement]) -> str:
    steps = min(one.steps for one in agreements)
    batches = [f"{batch:,}" for batch in sorted({one.global_batch_size for one in agreements})]
    at = f"at global batch {', '.join(batches)}"
    return f"over their first {units.counted(steps, 'timed step')} {at}"


def _is_comparable(record: TrialRecord) -> bool:
    """Whether it trains with SGD in float32 on uncompressed gradients of the whole global batch;
    Adam magnifies the rounding of small ones, and lower precision rounds in other places."""
    trial = record.trial
    traits = IMPLEMENTATIONS[trial.implementation]
    together = trial.group_size == 1 or traits.communicates
    sgd = trial.workload.optimizer.startswith("sgd")
    rounded_alike = trial.workload.dtype == "f32" and trial.comm_hook == "none"
    if not (sgd and rounded_alike and together) or traits.averages_parameters:
        return False
    curve = losses(record)
    return bool(curve) and is_finite(curve)


def _same_work(trial: TrialSpec) -> Hashable:
    """The settings that must be equal for losses to be equal."""
    steps = (trial.warmup_steps, trial.accumulation_steps)
    return (trial.workload, trial.learning_rate, trial.global_batch_size, *steps)


def _groups(
    records: Iterable[TrialRecord], key: Callable[[TrialSpec], Hashable]
) -> Mapping[Hashable, list[TrialRecord]]:
    groups: dict[Hashable, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(key(record.trial), []).append(record)
    return groups


def _agreement(records: Sequence[TrialRecord], *, same_split: bool) -> LossAgreement | None:
    labels = tuple(dict.fromkeys(record.trial.label for record in records))
    if len(labels) < 2:
        return None
    curves = [losses(record) for record in records]
    return LossAgreement(
        labels=labels,
        same_split=same_split,
        global_batch_size=records[0].trial.global_batch_size,
        steps=min(AGREEMENT_STEPS, *map(len, curves)),
        max_relative_difference=max_relative_difference(curves),
    )
