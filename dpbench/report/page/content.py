"""The content of a report as values: all text is plain, and only charts contain markup.

`build` makes it from records, `html` writes it down. Text may hold anything that a record may
hold, names with "<script>" in them included: whoever writes it down escapes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.report.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One of the things to know first: "Fastest", the number, and what it belongs to."""

    title: str
    value: str
    """The number with its unit and interval: "2,662 ± 294 images/s"."""
    about: str
    """The configuration, the sample size, and what qualifies the number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartImage:
    """A chart that was drawn."""

    kind: str
    title: str
    description: str
    """Words for readers who do not see the chart."""
    svg: str
    """Markup, safe to put into a page as it is."""
    caption: str = ""
    """Sample sizes and environment, which the file of the chart has below it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Charts and tables that answer one question, with what has to be said about them."""

    key: str
    """"scaling", "time", "learning", "communication", …"""
    title: str
    """A question: "How well does it scale?"."""
    charts: tuple[ChartImage, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    """Which charts have nothing to show, and why."""
    folded: bool = False
    """Whether a reader sees the title alone until they open it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepContent:
    """The content for one results folder."""

    started: str | None
    """When the first trial started, as people write it, UTC."""
    state: str
    """"66 of 66 trials"."""
    about: tuple[str, ...]
    """Model and data, hardware, versions: a few words each."""
    findings: tuple[Finding, ...]
    advice: tuple[str, ...]
    """Advice in sentences; the largest loss first."""
    warnings: tuple[str, ...]
    """Warnings before a number is believed: verification, drift, oversubscription."""
    environment: tuple[tuple[str, str], ...]
    """Name and value: CPU, cores, accelerators, versions, commit."""
    command: str
    """Command that repeats the sweep exactly."""
    results: Table
    """A row a configuration."""
    notes: tuple[str, ...]
    """How to read the table, and what it leaves out."""
    failures: Table | None
    """Failed and skipped configurations with the full reason; None if there were none."""
    sections: tuple[Section, ...]
    not_drawn: str | None = None
    """Charts that have nothing to show, of questions that have no section, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The report of one sweep."""

    title: str
    version: str
    """dpbench's version."""
    sweep: SweepContent
