"""How the cells of a table are written, each from its row."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.placement import host_counts
from dpbench.records import Status
from dpbench.report.numbers import MISSING, compact_time, memory, plus_minus

STATUS_WIDTH = 32
SHORTEST_REASON = 16
"""A narrower column has no room for reasons; they stand below the table anyway."""


def number(value: int | None) -> str:
    return MISSING if value is None else str(value)


def or_missing(value: Estimate | None, write: Callable[[Estimate], str]) -> str:
    return MISSING if value is None else write(value)


def seconds(value: float | None) -> str:
    return MISSING if value is None else units.seconds(value)


def group_size(row: ConfigurationSummary) -> str:
    """Writes "2", and "2 (1+1)" with the replicas of each host."""
    return f"{row.group_size}{f' ({host_counts(row.nodes)})' if row.nodes else ''}"


def learning_rate(row: ConfigurationSummary) -> str:
    if row.learning_rate is None:
        return MISSING
    scaled = "" if row.learning_rate_rule == "none" else f" ({row.learning_rate_rule})"
    return f"{row.learning_rate:g}{scaled}"


def throughput(row: ConfigurationSummary) -> str:
    return or_missing(row.throughput, lambda e: plus_minus(e, plain_decimals=1))


def speedup(value: Estimate | None) -> str:
    return or_missing(value, lambda e: plus_minus(e, two_after_one=False))


def percentage(value: Estimate | None) -> str:
    return or_missing(value, lambda e: f"{plus_minus(e, scale=100, plain_decimals=1)} %")


def rounded(value: Estimate) -> str:
    return plus_minus(value, plain_decimals=0)


def gflops(row: ConfigurationSummary) -> str:
    return or_missing(row.flops_per_second, lambda e: plus_minus(e, scale=1e-9, plain_decimals=1))


def time_to_loss(row: ConfigurationSummary) -> str:
    found = row.time_to_loss
    if found is None:
        return MISSING
    if found.seconds is None:
        return f"> {units.seconds(found.longest_seconds)}"
    return compact_time(found.seconds)


def size(value_bytes: int | None) -> str:
    return MISSING if value_bytes is None else memory(value_bytes)


def outliers(row: ConfigurationSummary) -> str:
    return MISSING if row.steps is None else f"{row.steps.outliers} of {row.steps.count}"


def autocorrelation(row: ConfigurationSummary) -> str:
    value = None if row.steps is None else row.steps.autocorrelation
    return MISSING if value is None else f"{value:.2f}"


def skew(row: ConfigurationSummary) -> str:
    return or_missing(row.rank_skew, lambda e: f"{plus_minus(e, scale=100, plain_decimals=1)} %")


def reduced(row: ConfigurationSummary) -> str:
    value = row.reduced_bytes_per_step
    return MISSING if value is None else units.bytes_binary(value)


def collectives(row: ConfigurationSummary) -> str:
    value = row.collectives_per_step
    return MISSING if value is None else f"{value:g}"


def verified(row: ConfigurationSummary) -> str:
    return {True: "yes", False: "no", None: "not checked"}[row.verified]


def status_cell(row: ConfigurationSummary, width: int = STATUS_WIDTH) -> str:
    """The status, with as much of the reason as fits; of wrong gradients, without the reason."""
    words = row.status.words
    explained = bool(row.reason) and row.status is not Status.WRONG_GRADIENTS
    if width < SHORTEST_REASON:
        ended = f"{words}…" if explained and len(words) < width else words
        return "\n".join(textwrap.wrap(ended, width))
    whole = f"{words}: {one_line(row.reason or '')}" if explained else words
    return whole if len(whole) <= width else f"{whole[: width - 1].rstrip(' :')}…"


def one_line(text: str) -> str:
    """Text that cannot break a table or a terminal: no control characters, single spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
