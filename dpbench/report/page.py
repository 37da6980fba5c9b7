"""The report page: what it says, which `templates/page.html.jinja` lays out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.collectives import Collectives
from dpbench.analysis.diagnosis.explanation import Explanation, fastest_by_work
from dpbench.errors import FileError
from dpbench.files import folder_inside, is_free, write_inside
from dpbench.records.environment import environment_line
from dpbench.report.answers.comm import collectives_table
from dpbench.report.answers.explain import READING_NOTE, factors_table, what_to_try
from dpbench.report.answers.report import headline_sentences, works_of
from dpbench.report.answers.setup import environment_lines, environment_table
from dpbench.report.charts.kinds import CHARTS, ChartKind, NothingToDraw
from dpbench.report.commands import next_command
from dpbench.report.configurations import configurations_table
from dpbench.report.markup import render_template
from dpbench.specs.command_line import CommandLine

REPORT_FOLDER, PAGE, CHART_FOLDER = "report", "index.html", "charts"
"""Names of the folder in a results folder, and in it of the page and of the folder with the files
of `dpbench plot`."""
GENERATOR, HEAD_BYTES = b'<meta name="generator" content="dpbench ', 2000
"""A tag in the beginning of each page, and the length of that beginning."""


def write_page(path: Path, text: str) -> Path:
    """Writes the text of a page, whole or not at all, and returns its path; raises FileError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_inside(path, text.encode())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def page_path(results: Path) -> Path:
    """The path of the page in a results folder; raises FileError if its folder is a link."""
    return folder_inside(results, REPORT_FOLDER) / PAGE


def page_path_in(folder: Path) -> Path:
    """The path of the page in a folder that the user names; raises FileError if that holds files,
    but no report."""
    page = folder / PAGE
    is_report = page.is_file() and GENERATOR in page.read_bytes()[:HEAD_BYTES]
    if not (is_report or is_free(folder)):
        raise FileError(
            f"{folder} holds other files; expected an empty folder, or one with a report of dpbench"
        )
    return page


def page_text(
    results: Analysis | Collectives,
    *,
    charts: bool = False,
    last_command: CommandLine | None = None,
) -> str:
    """The page of results, with every chart that they have data for if `charts`; `next_command`
    explains `last_command`. The template escapes all text, as it may come from a record, but for
    charts."""
    drawn = _draw(results) if charts else {}
    command: CommandLine | None
    if isinstance(results, Collectives):
        specs = [row.spec for row in results.rows]
        collectives = ", ".join(dict.fromkeys(spec.collective for spec in specs))
        backends = ", ".join(dict.fromkeys(spec.backend for spec in specs))
        title = f"{collectives} on {backends}" if specs else results.name
        command = results.command
        content: dict[str, Any] = {"collectives": collectives_table(results)}
    else:
        sweep = results.sweep
        title, command = (works_of(sweep), sweep.command) if sweep else (results.name, None)
        scaling = drawn.get("scaling", [])
        factors = factors_table([e for e in results.explanations if not e.row.noisy_estimates])
        content = {
            "headline": [*headline_sentences(results)],
            "advice": what_to_try([*_fastest_explained(results)]),
            "next_command": next_command(results, last_command),
            "first_chart": scaling.pop(0) if scaling and results.fastest else None,
            "rows": configurations_table(results.rows, command=command),
            "factors": factors if factors.lines else None,
            "reading_note": READING_NOTE,
        }
    first = next(iter(results.environments.values()), None)  # warnings say how others differ
    return render_template(
        "page.html",
        title=title,
        results=results,
        about=_about(results),
        charts=drawn,
        environment=environment_table(environment_lines(first)) if first else None,
        command=command.text if command else "",
        **content,
    )


def _fastest_explained(analysis: Analysis) -> Iterator[Explanation]:
    """For each headline the row that explain shows: the fastest one with several replicas."""
    for fastest in analysis.fastest:
        of_headline = [
            explained
            for explained in analysis.explanations
            if explained.row.work == fastest.work
            and fastest.batch_size in (None, explained.row.batch_size)
        ]
        yield from (best for best in fastest_by_work(of_headline) if best.trains_together)


def _draw(results: Analysis | Collectives) -> dict[str, list[tuple[ChartKind, str]]]:
    """Every chart that there is data for, one for each work, by section: its kind and markup."""
    from dpbench.report.charts.figures import house_style, inline_svg

    parts = results.by_work
    charts = defaultdict[str, list[tuple[ChartKind, str]]](list)
    with house_style():
        for kind, work in product(CHARTS.values(), parts):
            if len({row.group_size for row in parts[work].rows}) < kind.page_group_sizes:
                continue
            try:
                figure = kind.draw(parts[work])
            except NothingToDraw:
                continue  # dpbench plot says why
            charts[kind.section].append((kind, inline_svg(figure, salt=f"{kind.name} {work}")))
    return charts


def _about(results: Analysis | Collectives) -> Iterator[str]:
    """The machine, the time, how many trials were run, and how many rows are published."""
    if isinstance(results, Analysis) and results.sweep is None:
        yield f"{units.counted(len(results.rows), 'row')} of published numbers, not measured here"
        return
    yield environment_line(results.environments, {*results.environments})
    if first := min((record.started_utc for record in results.records), default=""):
        yield f"{first[:10]} {first[11:16]} UTC"
    if isinstance(results, Analysis) and results.sweep:
        yield units.counted(results.sweep.trials_run, "trial")
        if any(row.verified is not None for row in results.rows):
            right = sum(row.verified is True for row in results.rows)
            checked = sum(bool(row.throughput) or row.verified is not None for row in results.rows)
            yield f"gradients of {right:,} of {checked:,} configurations match a single process"
