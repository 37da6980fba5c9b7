"""The table of torch-ddp's README, for results that are laid side by side with it."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.report.table import MISSING

TORCH_DDP_LAYOUT = "seed"
"""The value of --columns that chooses this table: dpbench grew from that benchmark."""
TORCH_DDP_HEADERS = ("Backend", "Proc Group", "Batch", "Images/s")
TORCH_DDP_KEYS = ("backend", "group_size", "batch_size", "images_per_second")


def torch_ddp_cells(rows: Sequence[ConfigurationSummary]) -> list[list[str]]:
    """Cells sorted by backend, group size and batch size; throughput with one decimal."""
    return [
        [
            row.backend or MISSING,
            str(row.group_size),
            MISSING if row.batch_size is None else str(row.batch_size),
            MISSING if row.throughput is None else f"{row.throughput.value:.1f}",
        ]
        for row in sorted(rows, key=lambda r: (r.backend or "", r.group_size, r.batch_size or 0))
    ]


def torch_ddp_text(rows: Sequence[ConfigurationSummary]) -> str:
    """Left-aligned cells, a bar after each, a rule below the header and at the end."""
    cells = torch_ddp_cells(rows)
    widths = [max(map(len, column)) for column in zip(TORCH_DDP_HEADERS, *cells, strict=True)]
    rule = "+".join("-" * (width + 2) for width in widths)[1:] + "|"

    def line(values: Sequence[str]) -> str:
        return "".join(
            f"{value:<{width}} | " for value, width in zip(values, widths, strict=True)
        ).rstrip()

    return "\n".join([line(TORCH_DDP_HEADERS), rule, *map(line, cells), rule]) + "\n"


def torch_ddp_notes(rows: Sequence[ConfigurationSummary]) -> tuple[str, ...]:
    """Notes that four columns cannot show."""
    found = []
    implementations = list(dict.fromkeys(row.implementation for row in rows))
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
