"""The headline in words: a sentence for the terminal, findings for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.headline import Best, Headline, LargestLoss, NoResult
from dpbench.messages import one_line
from dpbench.report.numbers import percentage, quantity
from dpbench.report.page.content import Finding

NAMED = 2
"""Configurations that are named as not distinguishable; the rest are counted."""
NOT_KNOWN = "not known"
NO_WINNER = "no clear winner"
SYNTHETIC_PREFIX = "Synthetic (nothing was run): "


def sentences(headlines: Mapping[str, Headline]) -> Iterator[str]:
    """A sentence for each work, which it begins with; what disturbed the trials is said once,
    before them, as it is about the trials of all works."""
    if len(headlines) == 1:
        yield from map(sentence, headlines.values())
        return
    if doubt := next(iter(headlines.values())).disturbance:
        yield f"Beware: {doubt}."
    for work, one in headlines.items():
        yield f"{one_line(work)}: {sentence(replace(one, disturbance=None))}"


def sentence(headline: Headline) -> str:
    """A few words: what disturbed the trials; the fastest, the best scaling, what limits it; or why
    there is none."""
    doubt = f"Beware: {headline.disturbance}. " if headline.disturbance else ""
    if isinstance(headline.fastest, NoResult):
        return f"{doubt}No fastest configuration: {headline.fastest.reason}."
    parts = [_claim(headline.fastest)]
    if isinstance(headline.scaling, Best):
        same = headline.scaling.row == headline.fastest.row
        who = "it reaches" if same else f"{_name(headline.scaling.row)} scales best,"
        said = _bracketed(headline.scaling, again=same)
        parts.append(f"{who} {_scaling(headline.scaling)} ({said})")
    if isinstance(headline.limit, LargestLoss):
        whose = headline.limit.row
        of = "" if whose == headline.fastest.row else f"{_name(whose)}; "
        about = f"{of}n = {headline.limit.share.sample_size}"
        parts.append(
            f"{percentage(headline.limit.share)} of a step is {headline.limit.loss} ({about})"
        )
    said = "; ".join(parts)
    if headline.synthetic:
        return f"{doubt}{SYNTHETIC_PREFIX}{said}."
    if said.startswith(NO_WINNER):
        said = NO_WINNER.capitalize() + said.removeprefix(NO_WINNER)
    return f"{doubt}{said}."


def findings(headlines: Mapping[str, Headline]) -> Iterator[Finding]:
    """Findings with all qualifications, or the reason why one is missing; those of each work, whose
    titles say so."""
    if doubt := next(iter(headlines.values())).disturbance:
        yield Finding(title="Busy machine", value="not to be trusted", about=doubt)
    for work, one in headlines.items():
        for found in (_fastest(one.fastest), _best_scaling(one.scaling), _limit(one.limit)):
            title = f"{found.title}: {one_line(work)}" if work else found.title
            yield replace(found, title=title)


def _fastest(found: Best | NoResult) -> Finding:
    title = "Fastest"
    if isinstance(found, NoResult):
        return Finding(title=title, value=NOT_KNOWN, about=found.reason)
    if found.rivals:
        about = f"{speed_of(found.value)} of {_about(found)}"
        return Finding(title=title, value=NO_WINNER, about=about)
    return Finding(title=title, value=speed_of(found.value), about=_about(found))


def _best_scaling(found: Best | NoResult) -> Finding:
    title = "Best scaling"
    if isinstance(found, NoResult):
        return Finding(title=title, value=NOT_KNOWN, about=found.reason)
    return Finding(title=title, value=_scaling(found), about=_about(found))


def _limit(found: LargestLoss | NoResult) -> Finding:
    title = "What limits it"
    if isinstance(found, NoResult):
        return Finding(title=title, value="none found", about=found.reason)
    about = f"{found.loss}: {found.remedy} ({_name(found.row)}; n = {found.share.sample_size})"
    return Finding(title=title, value=f"{percentage(found.share)} of a step", about=about)


def _claim(best: Best) -> str:
    """The fastest and its speed; no more than its intervals allow."""
    name, said = _name(best.row), f"{speed_of(best.value)} ({_bracketed(best)})"
    if not best.others:
        return f"{name} is the only configuration with a speed: {said}"
    if best.rivals:
        return f"{NO_WINNER}: {name} reaches {said}"
    return f"{name} {'is' if best.resolved else 'measured'} fastest: {said}"


def _about(best: Best) -> str:
    return f"{_name(best.row)}; {_bracketed(best)}"


def _bracketed(best: Best, *, again: bool = False) -> str:
    """Qualifications of a number in brackets; the caveats of its row unless already stated."""
    return "; ".join((*_sizes_and_doubt(best), *(() if again else caveats(best.row))))


def _sizes_and_doubt(best: Best) -> Iterator[str]:
    yield _sizes(best)
    if best.others and not best.resolved:
        yield "a single run cannot show whether another is as good"
    elif best.rivals:
        yield f"statistically tied with {_named(best.rivals)}"


def caveats(row: ConfigurationSummary) -> Iterator[str]:
    """Reasons why a row's number cannot be used like others."""
    if row.configuration is None:
        yield "published, not measured here"
        return
    if row.verified is None:
        yield "its gradients were not compared with one process"
    if row.configuration.sync_every > 1:
        yield f"averages parameters every {row.configuration.sync_every} steps, gradients never"


def _sizes(best: Best) -> str:
    value = best.value
    if value.basis == "step batches":
        return f"one repetition, n = {value.sample_size} batches of its steps"
    return f"n = {value.sample_size}"


def _named(rows: tuple[ConfigurationSummary, ...]) -> str:
    names = [_name(row) for row in rows[:NAMED]]
    if len(rows) > NAMED:
        names.append(f"{len(rows) - NAMED:,} more")
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _name(row: ConfigurationSummary) -> str:
    return one_line(row.named_within_work.label)


def speed_of(value: Estimate) -> str:
    """Items per second, or the time of a fixed amount of work, with its unit."""
    if value.unit == "s" and value.interval is None:
        return units.seconds(value.value)
    return one_line(quantity(value))


def _scaling(best: Best) -> str:
    return f"{percentage(best.value)} of linear at {best.row.group_size} replicas"
