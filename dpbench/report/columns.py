"""The columns that a table may have: each with its unit and how it is written."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.errors import UnknownName, UsageError
from dpbench.records import Status
from dpbench.report.numbers import MISSING, compact, compact_time, memory, plus_minus

SEED = "seed"
STATUS_WIDTH = 32
SHORTEST_REASON = 16
"""A narrower column has no room for reasons; they stand below the table anyway."""

Cell = Callable[[ConfigurationSummary], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column; `key` is what --columns and the JSON rows call it."""

    key: str
    header: str
    """With "{Item}" where the architecture's item belongs: Images, Tokens."""
    cell: Cell
    wrapped: str | None = None
    """The header on two lines, for tables that would be too wide."""
    text: bool = False
    """Text is aligned left, numbers right."""
    default: bool = True
    only_if_any: bool = False
    """Belongs to some sources only: where it has no value, nobody misses it."""


def _number(value: int | None) -> str:
    return MISSING if value is None else str(value)


def _or_missing(value: Estimate | None, write: Callable[[Estimate], str]) -> str:
    return MISSING if value is None else write(value)


def _seconds(value: float | None) -> str:
    return MISSING if value is None else units.seconds(value)


def _throughput(row: ConfigurationSummary) -> str:
    return _or_missing(row.throughput, lambda e: plus_minus(e, plain_decimals=1))


def _speedup(value: Estimate | None) -> str:
    return _or_missing(value, lambda e: plus_minus(e, two_after_one=False))


def _efficiency(row: ConfigurationSummary) -> str:
    return _or_missing(row.efficiency, lambda e: f"{plus_minus(e, scale=100, plain_decimals=1)} %")


def _memory(row: ConfigurationSummary) -> str:
    value = row.peak_memory_bytes
    return MISSING if value is None else memory(value)


def _outliers(row: ConfigurationSummary) -> str:
    return MISSING if row.steps is None else f"{row.steps.outliers} of {row.steps.count}"


def _autocorrelation(row: ConfigurationSummary) -> str:
    value = None if row.steps is None else row.steps.autocorrelation
    return MISSING if value is None else f"{value:.2f}"


def _skew(row: ConfigurationSummary) -> str:
    return _or_missing(row.rank_skew, lambda e: f"{plus_minus(e, scale=100, plain_decimals=1)} %")


def _reduced(row: ConfigurationSummary) -> str:
    value = row.reduced_bytes_per_step
    return MISSING if value is None else units.bytes_binary(value)


def _collectives(row: ConfigurationSummary) -> str:
    value = row.collectives_per_step
    return MISSING if value is None else f"{value:g}"


def _verified(row: ConfigurationSummary) -> str:
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


COLUMNS = {
    column.key: column
    for column in (
        Column(
            key="implementation",
            header="Implementation",
            cell=lambda row: row.implementation,
            text=True,
        ),
        Column(
            key="backend",
            header="Backend",
            cell=lambda row: row.backend or MISSING,
            text=True,
        ),
        Column(
            key="group_size",
            header="Group",
            cell=lambda row: str(row.group_size),
        ),
        Column(
            key="batch_size",
            header="Batch",
            cell=lambda row: _number(row.batch_size),
        ),
        Column(
            key="global_batch_size",
            header="Global batch",
            wrapped="Global\nbatch",
            cell=lambda row: _number(row.global_batch_size),
            default=False,
        ),
        Column(
            key="images_per_second",
            header="{Item}/s",
            cell=_throughput,
        ),
        Column(
            key="duration_seconds",
            header="Time",
            cell=lambda row: MISSING if row.duration is None else _seconds(row.duration.value),
            only_if_any=True,
        ),
        Column(
            key="speedup",
            header="Speedup",
            cell=lambda row: _speedup(row.speedup),
        ),
        Column(
            key="absolute_speedup",
            header="Absolute speedup",
            wrapped="Absolute\nspeedup",
            cell=lambda row: _speedup(row.absolute_speedup),
            default=False,
        ),
        Column(
            key="efficiency",
            header="Efficiency",
            cell=_efficiency,
        ),
        Column(
            key="exposed_communication_seconds",
            header="Exposed comm",
            wrapped="Exposed\ncomm",
            cell=lambda row: _or_missing(row.exposed_communication_seconds, compact_time),
        ),
        Column(
            key="loss_delta_per_step",
            header="Loss delta/step",
            wrapped="Loss delta\n/step",
            cell=lambda row: _or_missing(row.loss_delta_per_step, compact),
        ),
        Column(
            key="loss_delta_per_second",
            header="Loss delta/s",
            wrapped="Loss\ndelta/s",
            cell=lambda row: _or_missing(row.loss_delta_per_second, compact),
        ),
        Column(
            key="final_loss",
            header="Final loss",
            wrapped="Final\nloss",
            cell=lambda row: _or_missing(row.final_loss, compact),
        ),
        Column(
            key="peak_memory_bytes",
            header="Peak memory",
            wrapped="Peak\nmemory",
            cell=_memory,
        ),
        Column(
            key="step_seconds_p50",
            header="Step p50",
            cell=lambda row: _seconds(row.steps.p50_seconds if row.steps else None),
            default=False,
        ),
        Column(
            key="step_seconds_p95",
            header="Step p95",
            cell=lambda row: _seconds(row.steps.p95_seconds if row.steps else None),
            default=False,
        ),
        Column(
            key="step_seconds_p99",
            header="Step p99",
            cell=lambda row: _seconds(row.steps.p99_seconds if row.steps else None),
            default=False,
        ),
        Column(
            key="outliers",
            header="Outliers",
            cell=_outliers,
            default=False,
        ),
        Column(
            key="step_autocorrelation",
            header="Autocorrelation",
            wrapped="Autocor-\nrelation",
            cell=_autocorrelation,
            default=False,
        ),
        Column(
            key="steady",
            header="Steady",
            cell=lambda row: MISSING if row.steps is None else row.steps.steady,
            text=True,
            default=False,
        ),
        Column(
            key="rank_skew",
            header="Rank skew",
            wrapped="Rank\nskew",
            cell=_skew,
            default=False,
        ),
        Column(
            key="slowest_rank",
            header="Slowest rank",
            wrapped="Slowest\nrank",
            cell=lambda row: _number(row.slowest_rank),
            default=False,
        ),
        Column(
            key="reduced_bytes_per_step",
            header="Reduced/step",
            wrapped="Reduced\n/step",
            cell=_reduced,
            default=False,
        ),
        Column(
            key="collectives_per_step",
            header="Collectives/step",
            wrapped="Collectives\n/step",
            cell=_collectives,
            default=False,
        ),
        Column(
            key="repetitions",
            header="Repetitions",
            wrapped="Repe-\ntitions",
            cell=lambda row: str(row.repetitions),
            default=False,
        ),
        Column(
            key="timed_steps",
            header="Timed steps",
            wrapped="Timed\nsteps",
            cell=lambda row: _number(row.timed_steps),
            default=False,
        ),
        Column(
            key="verified",
            header="Verified",
            cell=_verified,
            text=True,
            default=False,
        ),
        Column(
            key="status",
            header="Status",
            cell=status_cell,
            text=True,
        ),
    )
}
DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.default)


def parse_columns(text: str) -> tuple[Column, ...]:
    """Reads --columns a,b,c; raises UnknownName or UsageError. ("seed" is a layout of its own.)"""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in COLUMNS:
            raise UnknownName("column", name, [*COLUMNS, SEED])
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UsageError(f"--columns {text!r}: expected each column once, got {doubled[0]} twice")
    return tuple(COLUMNS[name] for name in names)


def claim_columns(rows: Sequence[ConfigurationSummary]) -> tuple[Column, ...]:
    """A column for everything that a published file claims and nobody measured."""

    def cell(name: str) -> Cell:
        return lambda row: dict(row.claims).get(name, MISSING)

    names = dict.fromkeys(name for row in rows for name, _ in row.claims)
    return tuple(
        Column(
            key=name,
            header=f"{_claim_words(name)} (claimed)",
            wrapped=f"{_claim_words(name)}\n(claimed)",
            cell=cell(name),
        )
        for name in names
    )


def _claim_words(name: str) -> str:
    words = name.removesuffix("_claimed").split("_")
    spelled = [
        word.upper() if word in ("gb", "gpu", "mb", "gib", "mib") else word for word in words
    ]
    spelled[0] = spelled[0][:1].upper() + spelled[0][1:]
    return " ".join(spelled)
