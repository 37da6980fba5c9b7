"""The columns that a table may have: each with its unit and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields import ReadField
from dpbench.analysis.setting_fields import SETTINGS
from dpbench.errors import UnknownName, UsageError
from dpbench.report import cells
from dpbench.report.meanings import CLAIMED, MEANINGS
from dpbench.report.numbers import MISSING, compact, compact_time
from dpbench.specs import TrialSpec

SEED = "seed"

Cell = Callable[[ConfigurationSummary], str]
Keys = tuple[str, ...]


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

    @property
    def meaning(self) -> str:
        """One sentence that defines it, with its unit."""
        return MEANINGS.get(self.key, CLAIMED)


def setting_column(field: ReadField[TrialSpec]) -> Column:
    """Not shown unless asked for: what is not at its default stands behind the implementation."""

    def cell(row: ConfigurationSummary) -> str:
        value = None if row.configuration is None else field.read(row.configuration)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if value is None:
            return MISSING
        return f"{value:g}" if isinstance(value, float) else str(value)

    return Column(
        key=field.key,
        header=field.key.removesuffix("_mb").replace("_", " ").capitalize(),
        cell=cell,
        text=field.kind in ("text", "boolean"),
        default=False,
    )


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
            cell=cells.group_size,
        ),
        Column(
            key="batch_size",
            header="Batch",
            cell=lambda row: cells.number(row.batch_size),
        ),
        Column(
            key="global_batch_size",
            header="Global batch",
            wrapped="Global\nbatch",
            cell=lambda row: cells.number(row.global_batch_size),
            default=False,
        ),
        Column(
            key="learning_rate",
            header="Learning rate",
            wrapped="Learning\nrate",
            cell=cells.learning_rate,
            default=False,
        ),
        *(setting_column(field) for field in SETTINGS),
        Column(
            key="images_per_second",
            header="{Item}/s",
            cell=cells.throughput,
        ),
        Column(
            key="duration_seconds",
            header="Time",
            cell=lambda row: MISSING if row.duration is None else cells.seconds(row.duration.value),
            only_if_any=True,
        ),
        Column(
            key="speedup",
            header="Speedup",
            cell=lambda row: cells.speedup(row.speedup),
        ),
        Column(
            key="absolute_speedup",
            header="Absolute speedup",
            wrapped="Absolute\nspeedup",
            cell=lambda row: cells.speedup(row.absolute_speedup),
            default=False,
        ),
        Column(
            key="efficiency",
            header="Efficiency",
            cell=lambda row: cells.percentage(row.efficiency),
        ),
        Column(
            key="exposed_communication_seconds",
            header="Exposed comm",
            wrapped="Exposed\ncomm",
            cell=lambda row: cells.or_missing(row.exposed_communication_seconds, compact_time),
        ),
        Column(
            key="loss_delta_per_step",
            header="Loss delta/step",
            wrapped="Loss delta\n/step",
            cell=lambda row: cells.or_missing(row.loss_delta_per_step, compact),
        ),
        Column(
            key="loss_delta_per_second",
            header="Loss delta/s",
            wrapped="Loss\ndelta/s",
            cell=lambda row: cells.or_missing(row.loss_delta_per_second, compact),
        ),
        Column(
            key="final_loss",
            header="Final loss",
            wrapped="Final\nloss",
            cell=lambda row: cells.or_missing(row.final_loss, compact),
        ),
        Column(
            key="loss_slope_per_step",
            header="Loss slope/step",
            wrapped="Loss slope\n/step",
            cell=lambda row: cells.or_missing(row.loss_slope_per_step, compact),
            default=False,
        ),
        Column(
            key="loss_slope_per_second",
            header="Loss slope/s",
            wrapped="Loss\nslope/s",
            cell=lambda row: cells.or_missing(row.loss_slope_per_second, compact),
            default=False,
        ),
        Column(
            key="time_to_loss_seconds",
            header="Time to loss",
            wrapped="Time to\nloss",
            cell=cells.time_to_loss,
            only_if_any=True,
        ),
        Column(
            key="loss_at_equal_samples",
            header="Loss at equal samples",
            wrapped="Loss, equal\nsamples",
            cell=lambda row: cells.or_missing(row.loss_at_equal_samples, compact),
            default=False,
        ),
        Column(
            key="loss_at_equal_seconds",
            header="Loss at equal seconds",
            wrapped="Loss, equal\nseconds",
            cell=lambda row: cells.or_missing(row.loss_at_equal_seconds, compact),
            default=False,
        ),
        Column(
            key="noise_scale_samples",
            header="Noise scale",
            wrapped="Noise\nscale",
            cell=lambda row: cells.or_missing(row.noise_scale, cells.rounded),
            only_if_any=True,
        ),
        Column(
            key="statistical_efficiency",
            header="Statistical efficiency",
            wrapped="Statistical\nefficiency",
            cell=lambda row: cells.percentage(row.statistical_efficiency),
            default=False,
        ),
        Column(
            key="goodput",
            header="Goodput",
            cell=lambda row: cells.or_missing(row.goodput, cells.rounded),
            only_if_any=True,
        ),
        Column(
            key="flops_per_second",
            header="GFLOP/s",
            cell=cells.gflops,
            default=False,
        ),
        Column(
            key="mfu",
            header="MFU",
            cell=lambda row: cells.percentage(row.mfu),
            only_if_any=True,
        ),
        Column(
            key="peak_memory_bytes",
            header="Peak memory",
            wrapped="Peak\nmemory",
            cell=lambda row: cells.size(row.peak_memory_bytes),
        ),
        Column(
            key="peak_reserved_memory_bytes",
            header="Reserved memory",
            wrapped="Reserved\nmemory",
            cell=lambda row: cells.size(row.peak_reserved_memory_bytes),
            default=False,
        ),
        Column(
            key="joules_per_item",
            header="J/item",
            cell=lambda row: cells.or_missing(row.joules_per_item, compact),
            only_if_any=True,
        ),
        Column(
            key="step_seconds_p50",
            header="Step p50",
            cell=lambda row: cells.seconds(row.steps.p50_seconds if row.steps else None),
            default=False,
        ),
        Column(
            key="step_seconds_p95",
            header="Step p95",
            cell=lambda row: cells.seconds(row.steps.p95_seconds if row.steps else None),
            default=False,
        ),
        Column(
            key="step_seconds_p99",
            header="Step p99",
            cell=lambda row: cells.seconds(row.steps.p99_seconds if row.steps else None),
            default=False,
        ),
        Column(
            key="outliers",
            header="Outliers",
            cell=cells.outliers,
            default=False,
        ),
        Column(
            key="step_autocorrelation",
            header="Autocorrelation",
            wrapped="Autocor-\nrelation",
            cell=cells.autocorrelation,
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
            cell=cells.skew,
            default=False,
        ),
        Column(
            key="slowest_rank",
            header="Slowest rank",
            wrapped="Slowest\nrank",
            cell=lambda row: cells.number(row.slowest_rank),
            default=False,
        ),
        Column(
            key="reduced_bytes_per_step",
            header="Reduced/step",
            wrapped="Reduced\n/step",
            cell=cells.reduced,
            default=False,
        ),
        Column(
            key="collectives_per_step",
            header="Collectives/step",
            wrapped="Collectives\n/step",
            cell=cells.collectives,
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
            cell=lambda row: cells.number(row.timed_steps),
            default=False,
        ),
        Column(
            key="verified",
            header="Verified",
            cell=cells.verified,
            text=True,
            default=False,
        ),
        Column(
            key="status",
            header="Status",
            cell=cells.status_cell,
            text=True,
        ),
    )
}
DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.default)


def parse_columns(text: str) -> tuple[Column, ...]:
    """Reads --columns a,b,c; raises UnknownName or UsageError. ("seed" is a layout of its own.)"""
    return tuple(COLUMNS[name] for name in parse_keys(text, COLUMNS))


def parse_keys(text: str, known: Iterable[str], *, layouts: Sequence[str] = (SEED,)) -> Keys:
    """The same of other keys; `layouts` are what else --columns takes, for the error."""
    names = tuple(name.strip() for name in text.split(","))
    keys = tuple(known)
    for name in names:
        if name not in keys:
            raise UnknownName("column", name, [*keys, *layouts])
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UsageError(f"--columns {text!r}: expected each column once, got {doubled[0]} twice")
    return names


def header_of(words: str, rows: Sequence[ConfigurationSummary]) -> str:
    """A header with the item that the rows count in place of {Item}, if it is one."""
    items = {row.item for row in rows if row.throughput} or {row.item for row in rows}
    item = cells.one_line(items.pop()) if len(items) == 1 else "items"
    return words.replace("{Item}", item[:1].upper() + item[1:])


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
