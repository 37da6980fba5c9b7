"""Collectives on the page: one table of all message sizes."""

from __future__ import annotations

from collections.abc import Iterator

from dpbench.analysis.communication.timings import SizeCost, measured
from dpbench.analysis.environments import environment_notes
from dpbench.report.collectives import HEADERS, definitions, heading, remarks, size_cells
from dpbench.report.page.cells import words
from dpbench.report.page.content import Table, TableCell, TableColumn, TableRow
from dpbench.store import StoredCollectives

MEANINGS = (
    "Size of the message in bytes; of all_gather and reduce_scatter of the whole, of which each "
    "rank holds its part.",
    "Elements of the message.",
    "Time of one call on the slowest rank: the median over samples, the geometric mean over "
    "repetitions.",
    "Size ÷ time, in 10⁹ bytes per second.",
    "algbw × the factor that makes it the load of each link of a ring, as nccl-tests defines it, "
    "in 10⁹ bytes per second.",
    "algbw ÷ the bandwidth of copying as many bytes from one tensor to another by all ranks at "
    "once, in percent.",
    "Repetitions, each in fresh processes.",
)


def collectives_table(stored: StoredCollectives) -> Table:
    """A row for each collective, backend, number of ranks and size."""
    return Table(
        key="collectives",
        caption="Collectives by message size",
        columns=(
            TableColumn(key="collective", header="Collective", meaning="", text=True),
            TableColumn(key="backend", header="Backend", meaning="", text=True),
            TableColumn(key="ranks", header="Ranks", meaning="Processes that take part."),
            *(
                TableColumn(key=header.lower(), header=header, meaning=meaning)
                for header, meaning in zip(_HEADERS, MEANINGS, strict=True)
            ),
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(one.spec.collective),
                    words(one.spec.backend),
                    TableCell(text=str(one.spec.group_size), sort=float(one.spec.group_size)),
                    *(
                        TableCell(text=text, sort=value)
                        for text, value in zip(size_cells(one, size), _values(size), strict=True)
                    ),
                )
            )
            for one in measured(stored.records)
            for size in one.sizes
        ),
    )


def collective_notes(stored: StoredCollectives) -> Iterator[str]:
    """What each block was measured with, what it costs beside its sizes, how to read the table."""
    found = measured(stored.records)
    for one in found:
        yield heading(one)
        for remark in remarks(one):
            yield f"{one.spec.label}: {remark}"
    yield from definitions(found)
    yield from environment_notes(stored.records, stored.environments, noun="measurement")


_HEADERS = tuple(header.replace("\n", " ") for header in HEADERS)


def _values(size: SizeCost) -> tuple[float | None, ...]:
    """What the cells are sorted by; elements of one type are as many as their bytes say."""
    return (
        float(size.nbytes),
        float(size.nbytes),
        size.seconds.value,
        size.algorithm_bandwidth.value,
        size.bus_bandwidth.value,
        None if size.copy_share is None else size.copy_share.value,
        float(size.seconds.sample_size),
    )
