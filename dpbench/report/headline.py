"""The headline in a sentence, and in tiles: the fastest configuration, and how well it scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dpbench.analysis.headline import Best, Headline
from dpbench.analysis.metrics import ROW_METRICS
from dpbench.messages import one_line
from dpbench.report.formatting import percentage, plus_minus, quantity

NO_WINNER = "No clear winner"
"""Said instead of "Fastest" where others tie with the best."""


class Tile(NamedTuple):
    """One of the numbers at the top of a page."""

    title: str
    number: str
    """With its unit and interval."""
    about: str


def headline_sentences(headlines: Mapping[str, Headline]) -> Iterator[str]:
    """One sentence for each work: the fastest configuration and how well it scales."""
    for work, headline in headlines.items():
        prefix = f"{one_line(work)}: " if work else ""
        sentence = _sentence(headline) + _lead(headline.fastest)
        yield f"{prefix}{sentence if work else sentence[:1].upper() + sentence[1:]}."


def _sentence(headline: Headline) -> str:
    best, scaling = headline.fastest, headline.scaling
    if best is None or headline.reason:
        return f"no fastest configuration: {headline.reason}"
    label = one_line(best.row.label)
    speed = f"{label} at {_value(best)}"
    if best.rivals:
        tied, count = NO_WINNER.lower(), len(best.rivals)
        others = one_line(best.rivals[0].label) if count == 1 else f"{count:,} others"
        if all(row.throughput and row.throughput.is_too_noisy for row in best.rivals):
            are = "is" if count == 1 else "are"
            return f"{tied}: {speed}, but {others} {are} too noisy to compare with it"
        return f"{tied}: {label}, {_value(best)}, and {others} tie"
    if best.others and best.value.basis != "repetitions":
        return f"fastest in a single run: {speed}; one run cannot show whether another is as fast"
    sentence = f"fastest: {speed}"
    if scaling is not None and scaling.row == best.row:
        against = scaling.row.speedup_reference
        sentence += f", {percentage(scaling.value)} of linear scaling from {against}"
    return sentence


def _lead(best: Best | None) -> str:
    """What repetitions in turn show, behind what else is said."""
    if best is None or best.nearest is None or best.lead is None:
        return ""
    row, other = one_line(best.row.label), one_line(best.nearest.label)
    return f"; repetition by repetition, {row} is {plus_minus(best.lead)} × as fast as {other}"


def tiles(headlines: Mapping[str, Headline]) -> Iterator[Tile]:
    """The same numbers one by one; one that is not known has no tile."""
    for work, headline in headlines.items():
        suffix = f": {one_line(work)}" if work else ""
        if (best := headline.fastest) is not None and not headline.reason:
            title = NO_WINNER if best.rivals else "Fastest"
            yield Tile(f"{title}{suffix}", _value(best), _who(best) + _lead(best))
        if (best := headline.scaling) is not None:
            title = f"Best efficiency at {best.row.group_size:,} replicas"
            about = f"{_who(best)}; 100 % is linear scaling from {best.row.speedup_reference}"
            yield Tile(f"{title}{suffix}", percentage(best.value), about)


def _value(best: Best) -> str:
    """The number with its unit and interval."""
    return quantity(best.value, ROW_METRICS[best.key].style)


def _who(best: Best) -> str:
    """Names the configuration, and those that tie with it."""
    name, *rivals = (one_line(row.label) for row in (best.row, *best.rivals))
    more = f" and {len(rivals) - 1:,} more" if len(rivals) > 1 else ""
    return f"{name}; statistically tied with {rivals[0]}{more}" if rivals else name
