"""Why a configuration is as fast as it is: its factors, its slowest rank, and causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dpbench.analysis.diagnosis.factors import Breakdown, Part, is_large_loss
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.rows import Row
from dpbench.analysis.throughput import rank_step_seconds, unsynced_windows
from dpbench.messages import option_words
from dpbench.records.trial import ScriptFacts, TrialRecord
from dpbench.specs import AXES, Configuration

SURE_SHARE = 0.01
"""A loss is sure if the lower end of its interval is at least this share of a step."""
Standing = Literal["wrong", "loss", "part of a loss", "not measured"]
"""What a cause does: it makes training wrong at any speed; it costs its share of the step; it is
one reason of a loss, whose share is the most that it costs; or its cost was not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """The rank that most often took longest without synchronization."""

    rank: int
    device: str
    """Device, with its node if there are several."""
    slowest_in: int
    """Number of repetitions in which it was the slowest."""
    repetitions: int
    behind: Estimate
    """Share of its step by which it is slower than the mean of the others."""

    @property
    def is_slow(self) -> bool:
        """Whether it is the slowest in all repetitions, and by more than chance or a trifle: among
        two equal ranks one is the slowest in all of four repetitions in one case of eight."""
        return self.slowest_in == self.repetitions and is_large_loss(self.behind)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Other values of settings of a row, which may reduce a loss."""

    values: Mapping[str, tuple[Any, Any]]
    """Fields of its configuration, each with the value now and the other one."""
    note: str = ""
    """What follows its options in a sentence."""

    def __str__(self) -> str:
        typed = [option_words(option, other) for option, (_, other) in self.options.items()]
        return f"try {' '.join(typed)}{self.note}"

    @property
    def options(self) -> dict[str, list[str]]:
        """Options of `dpbench sweep` that compare both, by field, with values as they are typed."""
        axes = [(AXES[name], both) for name, both in self.values.items()]
        return {axis.option: [*map(axis.text, both)] for axis, both in axes}

    def applied_to(self, configuration: Configuration) -> Configuration:
        """The configuration with the other values."""
        others = {name: other for name, (_, other) in self.values.items()}
        return replace(configuration, **others).normalized


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that makes a configuration slow, or makes training wrong at any speed."""

    kind: str
    """What programs call it: "find unused"."""
    text: str
    """What it is, as it follows "8 % of the step is"."""
    advice: tuple[Alternative | str, ...]
    """What to do about it, one or another: settings to measure, and other things in words."""
    standing: Standing = "not measured"
    share: Estimate | None = None
    """Share of the step's seconds, of a loss or a part of one."""
    parts: tuple[Part, ...] = ()
    """Parts of a step whose losses it makes, or is a part of."""

    @property
    def remedy(self) -> str:
        """The advice as a sentence."""
        sentence = ", or ".join(map(str, self.advice)) or "no other setting is known to reduce it"
        return sentence[0].upper() + sentence[1:]

    @property
    def alternatives(self) -> list[Alternative]:
        """The settings to measure."""
        return [each for each in self.advice if isinstance(each, Alternative)]

    @property
    def is_uncertain(self) -> bool:
        """Whether it may cost next to nothing, as 8 ± 8 % of the step does."""
        return bool(self.standing == "loss" and self.share and self.share.ends[0] < SURE_SHARE)

    @property
    def order(self) -> tuple[int, bool, float]:
        """What is wrong comes first, then the largest loss; last what was not measured."""
        place = {"wrong": 0, "not measured": 2}.get(self.standing, 1)
        return place, self.is_uncertain, -self.share.value if self.share else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One configuration: its row of the table, its factors, and what else was found."""

    row: Row
    breakdowns: Mapping[Configuration, Breakdown]
    """The breakdowns of all explained configurations of the sweep, this one included."""
    is_spoiled: bool
    """Whether so many trials of the sweep ran under load that no figure can be trusted."""
    causes: tuple[Cause, ...] = ()
    """What makes it slow or wrong, what matters most first."""

    @property
    def configuration(self) -> Configuration:
        """The settings of its row."""
        assert self.row.configuration is not None, "a row that was measured has settings"
        return self.row.configuration

    @property
    def breakdown(self) -> Breakdown:
        """The factors of its step, and what they rest on."""
        return self.breakdowns[self.configuration]

    @property
    def is_script(self) -> bool:
        return bool(self.configuration.workload.script)

    @property
    def has_slow_first_steps(self) -> bool:
        """Whether steps that the warm-up should have had cost much of its window."""
        return self.row.warm_up is not None and is_large_loss(self.row.warm_up.share)

    @property
    def cores(self) -> int:
        """Usable cores of its machine; 0 where that was not measured."""
        load = self.row.usable_records[0].host_load
        return load.cores if load else 0

    @property
    def script_facts(self) -> tuple[ScriptFacts, ...]:
        """Facts about the steps of its ranks, if they train a script together; () otherwise."""
        ranks = self.row.ranks if self.configuration.traits.communicates else ()
        return tuple(rank.script for rank in ranks if rank.script)

    @property
    def is_linear(self) -> bool:
        """Whether its efficiency is not clearly below 100 %, so that nothing is lost to scaling."""
        reached = self.row.efficiency
        return reached is not None and not reached.is_too_noisy and reached.ends[1] >= 1

    @property
    def trains_together(self) -> bool:
        """Whether it has several replicas that are one model."""
        return self.row.group_size > 1 and self.configuration.traits.communicates


def fastest_by_work(explanations: Sequence[Explanation]) -> list[Explanation]:
    """The fastest of each work, whose speeds do not compete: one that trains several replicas
    together, or any if none does; one that is too noisy only if all are."""

    def merit(explanation: Explanation) -> tuple[bool, bool, float]:
        row = explanation.row
        speed = row.throughput.value if row.throughput else 0.0
        return explanation.trains_together, not row.noisy_estimates, speed

    by_work: dict[str, list[Explanation]] = {}
    for explanation in explanations:
        by_work.setdefault(explanation.row.work, []).append(explanation)
    fastest = [max(group, key=merit) for group in by_work.values()]
    return [winner for winner in fastest if not winner.row.noisy_estimates] or fastest[:1]


def slowest_of(records: Sequence[TrialRecord]) -> SlowestRank | None:
    """The rank that others wait for; None for one process, or without a window without
    synchronization.

    With synchronization all ranks take equally long, as the fast ones wait.
    """
    traits = records[0].configuration.traits
    if traits.communicates and not all(map(unsynced_windows, records)):
        return None
    steps = np.array([rank_step_seconds(record) for record in records])
    if steps.shape[1] < 2:
        return None
    slowest = steps.argmax(axis=1)
    place = int(np.bincount(slowest).argmax())
    others = np.delete(steps, place, axis=1).mean(axis=1)
    rank = records[0].ranks[place].rank
    return SlowestRank(
        rank=rank,
        device=records[0].configuration.device_name(rank),
        slowest_in=int((slowest == place).sum()),
        repetitions=len(records),
        behind=mean((1 - others / steps[:, place]).tolist(), unit="of the step"),
    )
