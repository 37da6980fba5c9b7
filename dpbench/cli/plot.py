"""`dpbench plot`: charts of a results folder or a published table, one by one, in any format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.chart_files import chart_folder, write_chart
from dpbench.cli.options import (
    LATEST_RESULTS,
    OnlyBackends,
    OnlyBatchSizes,
    OnlyGroupSizes,
    OnlyImplementations,
)
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.options.bridge import read_value
from dpbench.options.types import Choice, CommaList
from dpbench.run.plotted import Plotted
from dpbench.run.results import is_table, parse_filter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.report.charts.kinds import ChartKind

ALL = "all"


def plot(
    kinds: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            show_default=ALL,
            help="Charts, comma-separated, or all.",
        ),
    ] = ALL,
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            show_default=LATEST_RESULTS,
            help="Results folder, or a CSV file of results.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="A,B", show_default="png,svg", help="Image formats: png, svg, pdf."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="PATH",
            show_default="PATH/report/charts",
            help="Folder, or for one chart a .png, .svg or .pdf file.",
        ),
    ] = None,
    implementations: OnlyImplementations = None,
    backends: OnlyBackends = None,
    group_sizes: OnlyGroupSizes = None,
    batch_sizes: OnlyBatchSizes = None,
) -> None:
    """Draw charts of results as PNG, SVG or PDF.

    dpbench plot throughput,efficiency results/demo --format pdf

    dpbench plot implementations results/demo --group-size 2 --output beside-torch.svg

    Charts: throughput, implementations, speedup, efficiency, step-shares, step-times, loss,
    bandwidth, projection. dpbench list says what each shows.
    """
    if path is None:
        kinds, path = _where(kinds)
    wanted = _kinds(kinds)
    targets = _targets(path, output, format, wanted)
    subject = Plotted(
        path=path,
        wanted=parse_filter(
            implementations=implementations,
            backends=backends,
            group_sizes=group_sizes,
            batch_sizes=batch_sizes,
        ),
    )
    _draw(subject, wanted, targets, named=output, is_all=kinds.strip() == ALL)


def _where(text: str) -> tuple[str, Path]:
    """The charts and the folder, where one word says one of them."""
    alone = Path(text)
    if os.sep in text or alone.is_dir() or is_table(alone):
        return ALL, alone
    wanted = _kinds(text)
    from dpbench.run.results import latest_folder

    of_sweeps = any(kind.source != "collectives" for kind in wanted)
    return text, latest_folder("plot", sweeps_only=of_sweeps)


def _draw(
    subject: Plotted,
    kinds: Sequence[ChartKind],
    targets: Mapping[str, Sequence[Path]],
    *,
    named: Path | None,
    is_all: bool,
) -> None:
    """Writes what there is to show, and prints where; of charts that were named all have to be."""
    from dpbench.report.charts.files import stem_of
    from dpbench.report.charts.source import NothingToDraw
    from dpbench.report.charts.style import house_style

    empty, count = [], 0
    with house_style():
        for kind in kinds:
            charts = subject.charts(kind)
            count += len(charts)
            if len(charts) > 1 and targets[kind.name] == [named]:
                works = "; ".join(work for work, _ in charts)
                raise UsageError(
                    f"--output {named}: one file for {len(charts)} charts ({works}); name a folder"
                )
            for work, draw in charts:
                try:
                    figure = draw()
                except NothingToDraw as reason:
                    empty.append(f"no chart {stem_of(kind.name, work)}: {reason}")
                    continue
                for file in targets[kind.name]:
                    _write(figure, file, "" if file == named else work, named=named)
    if empty and (not is_all or len(empty) == count):
        raise UsageError(f"{subject.path}: {'; '.join(empty)}")
    say(*empty)


def _write(figure: Figure, file: Path, work: str, *, named: Path | None) -> None:
    from dpbench.report.charts.files import stem_of

    target = file.with_name(f"{stem_of(file.stem, work)}{file.suffix}")
    write_chart(figure, target, named_by_user=target == named)
    typer.echo(target)


def _kinds(text: str) -> list[ChartKind]:
    from dpbench.report.charts.kinds import CHARTS

    if text.strip() == ALL:
        return list(CHARTS.values())
    names = read_value("KIND", CommaList[Annotated[str, Choice((*CHARTS, ALL))]], text)
    return list(CHARTS.values()) if ALL in names else [CHARTS[name] for name in names]


def _targets(
    path: Path, output: Path | None, format: str | None, kinds: Sequence[ChartKind]
) -> dict[str, list[Path]]:
    """The files of every kind."""
    from dpbench.report.charts.kinds import DEFAULT_IMAGES, IMAGE_FORMATS

    kind = CommaList[Annotated[str, Choice(tuple(IMAGE_FORMATS))]]
    formats = None if format is None else read_value("--format", kind, format)
    suffix = "" if output is None or output.is_dir() else output.suffix.lower()
    if output is not None and suffix:
        return {kinds[0].name: [_file(output, suffix, formats, kinds)]}
    if output is None and is_table(path):
        raise UsageError(
            f"{path} is a table, which has no folder for charts; say where they go: --output PATH"
        )
    folder = output or chart_folder(path)
    images = formats or DEFAULT_IMAGES
    return {kind.name: [folder / f"{kind.name}.{image}" for image in images] for kind in kinds}


def _file(
    output: Path, suffix: str, formats: tuple[str, ...] | None, kinds: Sequence[ChartKind]
) -> Path:
    from dpbench.report.charts.kinds import IMAGE_FORMATS

    if suffix[1:] not in IMAGE_FORMATS:
        raise UsageError(
            f"--output {output}: expected a folder, or a file that ends in .png, .svg or .pdf"
        )
    if len(kinds) > 1:
        raise UsageError(f"--output {output}: one file for {len(kinds)} charts; name a folder")
    if formats not in (None, (suffix[1:],)):
        raise UsageError(
            f"--output {output} and --format {','.join(formats or ())} contradict each other; "
            "leave --format out"
        )
    return output
