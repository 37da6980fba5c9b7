"""`dpbench list`: what there is to measure, and whether it can be used here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dpbench.report.progress.terminal import table_width


def inventory(
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with the MNIST files.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON.")] = False,
) -> None:
    """List models, implementations, backends, datasets and presets."""
    rows = list(_rows(data_dir))
    if as_json:
        import json

        typer.echo(json.dumps([dict(zip(KEYS, row, strict=True)) for row in rows], indent=1))
        return
    from dpbench.report.table import text_table
    from dpbench.report.terminal import folded, write_table

    table = text_table(HEADERS, map(_cells, rows), words=HEADERS)
    typer.echo(write_table(folded(table, HEADERS[-1:], limit=table_width())))


HEADERS = ("Kind", "Name", "Usable", "What")
KEYS = ("kind", "name", "reason", "description")
Row = tuple[str, str, str | None, str]
"""Kind, name, why it cannot be used (None if it can), description."""


def _cells(row: Row) -> list[str]:
    kind, name, reason, description = row
    return [kind, name, "yes" if reason is None else "no", reason or description]


def _rows(data_dir: Path | None) -> Iterator[Row]:
    from dpbench import architecture
    from dpbench.data.registry import DATASETS, unusable_reason
    from dpbench.launch.machine import inspect_machine
    from dpbench.launch.requirements import missing_package_reason
    from dpbench.report.charts.kinds import CHARTS
    from dpbench.run import presets
    from dpbench.traits import BACKENDS, IMPLEMENTATIONS

    machine = inspect_machine()
    for name in architecture.names():
        yield "architecture", name, *_architecture(name)
    for library in architecture.LIBRARIES:
        reason = architecture.missing_reason(library)
        yield "library", library, reason, f"--arch {library}:NAME, random weights"
    for implementation in IMPLEMENTATIONS.values():
        reason = missing_package_reason(implementation.name)
        if implementation.needs_cuda and not machine.has_cuda:
            reason = f"needs CUDA: {implementation.needs_cuda}"
        yield "implementation", implementation.name, reason, implementation.description
    for backend in BACKENDS.values():
        yield "backend", backend.name, machine.missing_reason(backend.name), backend.description
    for dataset in DATASETS.values():
        reason = unusable_reason(dataset.name, data_dir)
        yield "dataset", dataset.name, reason, dataset.description
    files = {name: presets.path_of(name) for name in presets.names()}
    files |= {name: presets.training_path(name) for name in presets.training_names()}
    for name, path in files.items():
        yield "preset", name, None, presets.purpose(path)
    for chart in CHARTS.values():
        yield "chart", chart.name, None, chart.title


def _architecture(name: str) -> tuple[str | None, str]:
    import torch

    from dpbench import architecture

    loaded = architecture.load(name)
    with torch.device("meta"):  # only to be counted: no memory, no time
        parameters = sum(parameter.numel() for parameter in loaded.build_model().parameters())
    flops = loaded.flops_per_item
    cost = "" if flops is None else f" {flops / 1e6:,.1f} MFLOP per step and item,"
    options = ", ".join(f"{each.name}={each.default}" for each in architecture.options(name))
    return None, (
        f"{parameters:,} parameters,{cost} {loaded.item}, on {loaded.default_dataset}; "
        f"options {options or 'none'}"
    )
