"""The table of torch-ddp's README, for results that are laid side by side with it."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.row import Row
from dpbench.report.table import MISSING

TORCH_DDP_LAYOUT = "seed"
"""The value of --columns that chooses this table: dpbench grew from that benchmark."""
PLACE_HEADERS = ("Backend", "Proc Group", "Batch")
TORCH_DDP_HEADERS = (*PLACE_HEADERS, "Images/s")
TORCH_DDP_KEYS = ("backend", "group_size", "batch_size", "images_per_second")
CONVERGENCE_HEADERS = (*PLACE_HEADERS, "Loss delta/step", "Loss delta/s")
CONVERGENCE_KEYS = ("loss_delta_per_step", "loss_delta_per_second")


def torch_ddp_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Cells sorted by backend, group size and batch size; throughput with one decimal."""
    return [[*_place(row), _number(row.throughput, 1)] for row in _ordered(rows)]


def torch_ddp_text(rows: Sequence[Row]) -> str:
    """The four columns of the README; if losses were measured, a second table shows how much the
    loss fell, which torch-ddp's program prints as well."""
    text = _table(TORCH_DDP_HEADERS, torch_ddp_cells(rows))
    if all(row[key] is None for row in rows for key in CONVERGENCE_KEYS):
        return text
    cells = [
        [*_place(row), *(_number(row[key], 4) for key in CONVERGENCE_KEYS)]
        for row in _ordered(rows)
    ]
    return f"{text}\n{_table(CONVERGENCE_HEADERS, cells)}"


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (r.backend or "", r.group_size, r.batch_size or 0))


def _place(row: Row) -> list[str]:
    batch = MISSING if row.batch_size is None else str(row.batch_size)
    return [row.backend or MISSING, str(row.group_size), batch]


def _number(value: Estimate | float | None, decimals: int) -> str:
    number = value.value if isinstance(value, Estimate) else value
    return MISSING if number is None else f"{number:.{decimals}f}"


def _table(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Left-aligned cells, a bar after each, a rule below the header and at the end."""
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    rule = "+".join("-" * (width + 2) for width in widths)[1:] + "|"

    def line(values: Sequence[str]) -> str:
        return "".join(
            f"{value:<{width}} | " for value, width in zip(values, widths, strict=True)
        ).rstrip()

    return "\n".join([line(headers), rule, *map(line, cells), rule]) + "\n"


def torch_ddp_notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Notes that four columns cannot show."""
    found = []
    implementations = list(dict.fromkeys(row.implementation_label for row in rows))
    if len(implementations) > 1:
        found.append(
            f"--columns {TORCH_DDP_LAYOUT} does not show the implementation; these rows are of "
            f"{', '.join(implementations)}"
        )
    if items := sorted({row.item for row in rows if row.throughput} - {"images"}):
        found.append(
            f"--columns {TORCH_DDP_LAYOUT} says Images/s; these rows count {', '.join(items)}"
        )
    return tuple(found)
