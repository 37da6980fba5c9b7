"""The report page: what it says, as values, which `templates/page.html.jinja` lays out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench import units
from dpbench.analysis.analyze import Analysis, CollectivesAnalysis
from dpbench.analysis.diagnosis.explanation import Explanation, fastest_by_work
from dpbench.errors import FileError
from dpbench.files import folder_inside, is_free, write_inside
from dpbench.messages import one_line
from dpbench.records.environment import environment_line
from dpbench.report.answers.comm import collectives_table
from dpbench.report.answers.explain import READING_NOTE, factors_table, what_to_try
from dpbench.report.answers.report import headline_sentences, works_of
from dpbench.report.answers.setup import environment_lines, environment_table
from dpbench.report.charts.figures import house_style, inline_svg
from dpbench.report.charts.kinds import CHARTS, ChartKind, NothingToDraw, PageSection
from dpbench.report.commands import next_command
from dpbench.report.configurations import configurations_table
from dpbench.report.markup import render_template
from dpbench.report.table import Table
from dpbench.specs.command_line import CommandLine

REPORT_FOLDER, PAGE, CHART_FOLDER = "report", "index.html", "charts"
"""Names of the folder in a results folder, and in it of the page and of the folder with the files
of `dpbench plot`."""
GENERATOR, HEAD_BYTES = b'<meta name="generator" content="dpbench ', 2000
"""A tag in the beginning of each page, and the length of that beginning."""
PageChart = tuple[ChartKind, str]
"""A chart of the page: its kind, and markup that is safe to put into a page as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Charts, a table and notes under one heading."""

    kind: PageSection
    charts: Sequence[PageChart] = ()
    table: Table | None = None
    notes: Sequence[str] = ()
    code: str = ""
    """A command as it is typed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The report of one results folder or published table. Text may come from a record, so the
    template escapes it; only charts contain markup."""

    title: str
    about: str
    """Model, data, hardware, versions, and how many trials were run, on one line."""
    headline: tuple[str, ...]
    """The result, in one sentence for each work and batch size."""
    warnings: tuple[str, ...]
    """Warnings to read before a number is believed."""
    advice: tuple[str, ...]
    """What to do about the fastest rows, as explain prints it; the largest loss first."""
    next_command: str
    """What to run next; "" for nothing."""
    first_chart: PageChart | None
    """The chart beside the headline, if there is one: the first of how speeds scale."""
    sections: tuple[Section, ...]


def write_page(
    path: Path, analysis: Analysis, *, charts: bool = True, last_command: CommandLine | None = None
) -> Path:
    """Writes the page of an analysis, with its `charts` or without, whole or not at all, and
    returns its path; `next_command` explains `last_command`. Raises FileError."""
    page = build_page(analysis, charts=charts, last_command=last_command)
    text = render_template("page.html", page=page)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_inside(path, text.encode())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def page_path(results: Path) -> Path:
    """The path of the page in a results folder; raises FileError if its folder is a link."""
    return folder_inside(results, REPORT_FOLDER) / PAGE


def charts_folder(results: Path) -> Path:
    """The folder of charts in a results folder; raises FileError if it is a link."""
    return folder_inside(results, REPORT_FOLDER, CHART_FOLDER)


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


def build_page(
    analysis: Analysis, *, charts: bool = False, last_command: CommandLine | None = None
) -> Page:
    """The page of an analysis, with every chart that it has data for if `charts`."""
    drawn = [*_draw(analysis)] if charts else []
    of_scaling = [chart for chart in drawn if chart[0].section is PageSection.SCALING]
    first = of_scaling[0] if of_scaling and analysis.fastest else None
    return Page(
        title=one_line(analysis.name),
        about=" · ".join(map(one_line, _about(analysis))),
        headline=tuple(headline_sentences(analysis.fastest)),
        warnings=analysis.warnings,
        advice=what_to_try([*_fastest_explained(analysis)]),
        next_command=next_command(analysis, last_command),
        first_chart=first,
        sections=tuple(_sections(analysis, [chart for chart in drawn if chart is not first])),
    )


def _fastest_explained(analysis: Analysis) -> Iterator[Explanation]:
    """For each headline the row that explain shows: the fastest one with several replicas."""
    together = [explained for explained in analysis.explanations if explained.trains_together]
    for fastest in analysis.fastest:
        yield from fastest_by_work(
            [
                explained
                for explained in together
                if explained.row.work == fastest.work
                and fastest.batch_size in (None, explained.row.batch_size)
            ]
        )


def _draw(analysis: Analysis) -> Iterator[PageChart]:
    """Every kind that the analysis has data for; one for each work."""
    charts = [(kind, part) for kind in CHARTS.values() for part in analysis.by_work]
    with house_style():
        for kind, part in charts:
            if kind.name == "speedup" and len({row.group_size for row in part.rows}) < 3:
                continue  # of two group sizes throughput and efficiency say the same
            try:
                figure = kind.draw(part)
            except NothingToDraw:
                continue  # dpbench plot says why
            yield kind, inline_svg(figure, salt=f"{kind.name} {part.work}")


def _sections(analysis: Analysis, charts: Sequence[PageChart]) -> Iterator[Section]:
    """All sections with content, in their order."""
    command = analysis.stored.command if analysis.stored else None
    clear = [each for each in analysis.explanations if not each.row.noisy_estimates]
    tables = {
        PageSection.RESULTS: configurations_table(analysis.rows, command=command),
        PageSection.TIME: factors_table(clear),
    }
    if isinstance(analysis, CollectivesAnalysis):
        tables[PageSection.COMMUNICATION] = collectives_table(analysis.collectives.records)
    if analysis.environments:
        # Warnings tell how other environments differ from the first.
        first, *_ = analysis.environments.values()
        tables[PageSection.ENVIRONMENT] = environment_table(environment_lines(first))
    notes = {PageSection.RESULTS: analysis.notes, PageSection.TIME: (READING_NOTE,)}
    for kind in PageSection:
        own = tuple(chart for chart in charts if chart[0].section is kind)
        code = command.text if command and kind is PageSection.REPRODUCE else ""
        table = tables.get(kind)
        if table and table.lines:
            yield Section(kind=kind, charts=own, table=table, notes=notes.get(kind, ()))
        elif own or code:
            yield Section(kind=kind, charts=own, code=code)


def _about(analysis: Analysis) -> Iterator[str]:
    sweep = analysis.sweep
    stored = analysis.stored
    if stored is None:
        yield f"{units.counted(len(analysis.rows), 'row')} of published numbers, not measured here"
        return
    if sweep:
        yield works_of(sweep)
    yield environment_line(stored.environments, {*stored.environments})
    if first := min((record.started_utc for record in stored.records), default=""):
        yield f"{first[:10]} {first[11:16]} UTC"
    if sweep:
        yield units.counted(sweep.trials_run, "trial")
    if any(row.verified is not None for row in analysis.rows):
        right = sum(row.verified is True for row in analysis.rows)
        checked = sum(bool(row.throughput) or row.verified is not None for row in analysis.rows)
        yield f"gradients of {right:,} of {checked:,} configurations match a single process"
