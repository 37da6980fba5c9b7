"""What a chart is made of, and the caption that tells where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.environment import Environment
from dpbench.records import TrialRecord
from dpbench.report.cells import one_line


class NothingToDraw(Exception):
    """The data holds nothing that this chart could show; the message says what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartSource:
    """The same rows as the table, the records behind them, and where they were measured."""

    rows: tuple[ConfigurationSummary, ...]
    records: tuple[TrialRecord, ...] = ()
    environments: Mapping[str, Environment]
    name: str

    def caption(self, estimates: Sequence[Estimate], remarks: Sequence[str], **words: str) -> str:
        """How the intervals came about, what is not shown, and the environment.

        `words` are those of `interval_words`.
        """
        used = {record.environment_id for record in self.records}
        intervals = interval_words(estimates, **words)
        parts = [*intervals, *remarks, environment_line(self.environments, used)]
        return " · ".join(one_line(part) for part in (*parts, self.name))


def environment_line(environments: Mapping[str, Environment], used: set[str]) -> str:
    """The machine in a few words: "AMD EPYC 7B13, 2 cores, torch 2.9.0"."""
    known = [environments[identifier] for identifier in sorted(used) if identifier in environments]
    if not used:
        return "environment not recorded"
    if len(used) > 1 or not known:
        listed = ", ".join(sorted(used))
        return f"environment{'s' if len(used) > 1 else ''} {listed}"
    machine = known[0]
    gpus = [accelerator.name for accelerator in machine.accelerators]
    what = [machine.cpu, f"{machine.cores} cores"]
    what += [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    versions = {version[0]: version[-1] for version in machine.versions}
    if "torch" in versions:
        what.append(f"torch {versions['torch']}")
    return ", ".join(what)


def interval_words(
    estimates: Sequence[Estimate], mark: str = "bars", without: str = "points without a bar"
) -> list[str]:
    """How the intervals of a chart came about, and what shows them."""
    words = []
    for basis, noun in (
        ("repetitions", "repetitions"),
        ("step batches", "step batches of one run"),
    ):
        sizes = sorted({e.sample_size for e in estimates if e.basis == basis})
        if sizes:
            count = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}"
            words.append(f"{mark}: 95 % interval over n = {count} {noun}")
    single = sum(estimate.basis == "single value" for estimate in estimates)
    if single:
        which = "all" if single == len(estimates) else str(single)
        words.append(f"{which} {without}: single values (n = 1)")
    return words
