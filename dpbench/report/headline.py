"""The headline in words: findings for the page, with all their qualifications."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.headline import Best, Headline, NoResult
from dpbench.messages import one_line
from dpbench.report.numbers import percentage, quantity
from dpbench.report.page.content import Finding

NAMED = 2
"""Configurations that are named as statistically tied; the rest are counted."""


def findings(headlines: Mapping[str, Headline]) -> Iterator[Finding]:
    """The fastest, the best scaling and the largest loss of each work, or why one is missing; what
    disturbed the trials comes first."""
    if doubt := next(iter(headlines.values())).disturbance:
        yield Finding(title="Busy machine", value="not to be trusted", about=doubt)
    for work, one in headlines.items():
        for found in (_fastest(one.fastest), _best_scaling(one.scaling), _limit(one)):
            title = f"{found.title}: {one_line(work)}" if work else found.title
            yield replace(found, title=title)


def _fastest(found: Best | NoResult) -> Finding:
    title = "Fastest"
    if isinstance(found, NoResult):
        return Finding(title=title, value="not known", about=found.reason)
    if found.rivals:
        about = f"{speed_of(found.value)} of {_about(found)}"
        return Finding(title=title, value="no clear winner", about=about)
    return Finding(title=title, value=speed_of(found.value), about=_about(found))


def _best_scaling(found: Best | NoResult) -> Finding:
    title = "Best scaling"
    if isinstance(found, NoResult):
        return Finding(title=title, value="not known", about=found.reason)
    value = f"{percentage(found.value)} of linear at {found.row.group_size} replicas"
    return Finding(title=title, value=value, about=_about(found))


def _limit(headline: Headline) -> Finding:
    title, found = "What limits it", headline.limit
    if isinstance(found, NoResult):
        return Finding(title=title, value="none found", about=found.reason)
    about = f"{found.loss}: {found.remedy} ({name_of(found.row)}; n = {found.share.sample_size})"
    return Finding(title=title, value=f"{percentage(found.share)} of a step", about=about)


def _about(best: Best) -> str:
    """The row, its sample size, what it is tied with, and its caveats."""
    return "; ".join((name_of(best.row), *_sizes_and_doubt(best), *caveats(best.row)))


def _sizes_and_doubt(best: Best) -> Iterator[str]:
    size = f"n = {best.value.sample_size}"
    in_one = best.value.basis == "step batches"
    yield f"one repetition, {size} batches of its steps" if in_one else size
    if best.others and not best.resolved:
        yield "a single run cannot show whether another is as good"
    elif best.rivals:
        names = [name_of(row) for row in best.rivals[:NAMED]]
        if len(best.rivals) > NAMED:
            names.append(f"{len(best.rivals) - NAMED:,} more")
        last = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        yield f"statistically tied with {last}"


def caveats(row: ConfigurationSummary) -> Iterator[str]:
    """Reasons why a row's number cannot be used like others."""
    if row.configuration is None:
        yield "published, not measured here"
        return
    if row.verified is None:
        yield "its gradients were not compared with one process"
    if row.configuration.sync_every > 1:
        yield f"averages parameters every {row.configuration.sync_every} steps, gradients never"


def name_of(row: ConfigurationSummary) -> str:
    """The label of a row without the name of its work."""
    return one_line(row.named_within_work.label)


def speed_of(value: Estimate) -> str:
    """Items per second, or the time of a fixed amount of work, with its unit."""
    if value.unit == "s" and value.interval is None:
        return units.seconds(value.value)
    return one_line(quantity(value))
