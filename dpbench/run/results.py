"""Results folders: where new ones go, which one and which of its rows a command means; and what
commands answer from results, stored or just measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count, product
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import folders
from dpbench.errors import FileError, UsageError
from dpbench.files import require_free, write_output
from dpbench.messages import say, warn
from dpbench.options.results import ALL_CHARTS
from dpbench.report.charts.kinds import CHARTS, NothingToDraw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.analysis.analyze import Analysis
    from dpbench.analysis.comparisons.matching import Side
    from dpbench.analysis.rows import Row
    from dpbench.folders import Collectives, Sweep
    from dpbench.options.comm import CommOptions
    from dpbench.options.results import CompareOptions, PlotOptions, ReportOptions
    from dpbench.options.shared import RowFilter
    from dpbench.options.sweep import SweepOptions
    from dpbench.report.answer import Answer
    from dpbench.specs.collective import CollectiveSpec
    from dpbench.specs.command_line import CommandLine


DATA_FILES = (folders.TRIALS_FILE, folders.SWEEP_FILE, folders.COLLECTIVES_FILE, folders.COMM_FILE)
"""Files written while measuring. A report does not count: it can be made again at any time."""


def results_folder(results_dir: Path, name: str | None, *, otherwise: str) -> Path:
    """The path of `name` in `results_dir`. Without a name it has the time and `otherwise`, and a
    number if another one was made in the same second."""
    if name is not None:
        folders.check_name(name)
        return results_dir / name
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return results_dir / first_free(
        f"{time}-{otherwise}", lambda free: (results_dir / free).exists()
    )


def first_free(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, with the first number behind it that makes it free: "mlp", "mlp-2"."""
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if not is_taken(free))


def new_folder(results_dir: Path, name: str | None, *, otherwise: str) -> Path:
    """The same for new results; raises FileError if the folder holds something."""
    folder = results_folder(results_dir, name, otherwise=otherwise)
    require_free(folder, folders.RESUME_REMEDY)
    return folder


def latest_folder(command: str, *, sweeps_only: bool = True) -> Path:
    """The latest results folder, for a `command` without one; says which. Raises UsageError if
    there is none."""
    place = Path("results")
    found = [
        folder
        for folder in (place.iterdir() if place.is_dir() else ())
        if folders.holds_sweep(folder) or (folders.holds_collectives(folder) and not sweeps_only)
    ]
    if not found:
        raise UsageError(
            f"{command}: expected a results folder, but {place}/ holds none; name one, or make one "
            "with dpbench sweep"
        )
    latest = max(found, key=lambda folder: (last_measured(folder), folder.name))
    say(f"{command}: no folder given; using the latest: {latest}")
    return latest


def last_measured(folder: Path) -> float:
    """The time when something was last measured into it; 0 where that is unknown."""
    files = (folder / name for name in DATA_FILES)
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def is_table(path: Path) -> bool:
    """Whether the path is a .csv file and no results folder."""
    return path.suffix.lower() == ".csv" and not path.is_dir()


def load_stored(folder: Path) -> Sweep | Collectives:
    """The content of a results folder; raises FileError if it is none."""
    if folders.holds_collectives(folder) and not folders.holds_sweep(folder):
        return folders.load_collectives(folder)
    return folders.load_sweep(folder)


def read_analysis(path: Path) -> Analysis:
    """Read and analyze a results folder or a CSV file; raises FileError if it is neither."""
    from dpbench.analysis.analyze import Analysis, analyze
    from dpbench.analysis.rows import published_rows

    if is_table(path):
        return Analysis(name=path.name, rows=published_rows(path))
    return analyze(load_stored(path))


def select_rows(analysis: Analysis, wanted: RowFilter) -> Analysis:
    """The analysis with the wanted rows alone; raises UsageError if there are none."""
    measured = [record.spec for record in analysis.collectives]
    there: list[Row | CollectiveSpec] = [*analysis.rows, *measured]
    if there and not any(map(wanted.keeps, there)):
        raise UsageError(f"{analysis.name}: no such row; there are {wanted.choices(there)}")
    return analysis.keeping(wanted.keeps)


def load_sides(*texts: str) -> tuple[list[Side], list[str]]:
    """Load the sides of a comparison, each DIR or DIR:key=value,…, and what could not be read.

    Raises UsageError for an invalid selection, FileError for a folder that cannot be read.
    """
    from dpbench.analysis.comparisons.matching import Side

    loaded: dict[Path, Sweep] = {}
    sides, warnings = [], list[str]()
    for text in texts:
        folder, where = split_selection(text)
        path = folder.resolve()
        if path not in loaded:
            loaded[path] = folders.load_sweep(folder)
            warnings += loaded[path].warnings
        sides.append(Side(label=text, sweep=loaded[path], where=where, run_id=str(path)))
    return sides, warnings


def split_selection(text: str) -> tuple[Path, dict[str, str]]:
    """The folder and the selection of its rows, which follows the first colon after a folder that
    is there, or else the first of all.

    Raises UsageError for a selection that is not key=value[,key=value].
    """
    from dpbench.analysis.comparisons.matching import RUN_IDENTITY

    ends = [place for place, letter in enumerate(text) if letter == ":"]
    if not ends or Path(text).is_dir():
        return Path(text), {}
    end = next((place for place in ends if Path(text[:place]).is_dir()), ends[0])
    folder, selection = text[:end], text[end + 1 :]
    where: dict[str, str] = {}
    for part in selection.split(","):
        key, equals, value = part.partition("=")
        if key not in RUN_IDENTITY and [*where][-1:] == ["architecture"]:  # one of its options
            where["architecture"] += f",{part}"
            continue
        if not (key and equals and value):
            raise UsageError(f"{text}: {part!r} is not key=value; write e.g. DIR:backend=gloo")
        if key in where:
            raise UsageError(f"{text}: {key} is given twice; give it one value")
        where[key] = value
    return Path(folder), where


def measured_answer(
    stored: Sweep | Collectives,
    options: CommOptions | SweepOptions,
    *,
    typed: CommandLine | None = None,
    verbose: bool = False,
) -> Answer:
    """What a command has measured, of which it writes the page; see `report_answer`. Says where the
    records and the output of failures are."""
    from dpbench.analysis.analyze import analyze
    from dpbench.records.trial import Status
    from dpbench.report.answer import Answer
    from dpbench.report.answers.report import report_answer
    from dpbench.report.configurations import plain_rows

    analysis = analyze(stored)
    page = _write_page(stored.folder, analysis, charts=options.charts, typed=typed)
    logs = stored.folder / folders.LOGS_FOLDER
    fine = (Status.COMPLETED, Status.SKIPPED)
    if logs.is_dir() and any(record.status not in fine for record in stored.records):
        say(f"the output of trials that failed is in {logs}")
    if not options.as_json:
        return report_answer(analysis, page=page, typed=typed, verbose=verbose)
    say(f"records are in {stored.folder}")
    return Answer(paragraphs=(), data=plain_rows(analysis.frame))


def _write_page(
    results: Path, analysis: Analysis, *, charts: bool, typed: CommandLine | None = None
) -> Path | None:
    """Write the page into a results folder and return its path; None, with a warning that says why,
    if it cannot be written."""
    from dpbench.report.page import page_path, write_page

    try:
        return write_page(page_path(results), analysis, charts=charts, typed=typed)
    except FileError as error:
        warn(f"no page was written: {error}")
        return None


def report(options: ReportOptions) -> Answer | str | None:
    """The table of results, of which a page is written; or their rows in another format as text,
    None if they are in a file.

    Raises UsageError for rows or columns that the results do not have, and FileError.
    """
    from dpbench.report import DATA_FORMATS
    from dpbench.report.configurations import frame_text, rows_text

    path = options.path or latest_folder("report", sweeps_only=False)
    if options.open and options.output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    analysis = read_analysis(path)
    format = options.rows_format
    if format is None and analysis.collectives and options.columns:
        if options.output or options.open:
            raise UsageError(
                "--columns: the page of collectives has all columns; leave it out, or write rows "
                "with --output FILE.csv"
            )
        format = "csv"
    if format is None:
        return _report_page(options, path, analysis)
    analysis = select_rows(analysis, options)
    warn(*analysis.warnings)
    for note in () if format in DATA_FORMATS else analysis.notes:
        print(note, file=sys.stderr)
    if format in DATA_FORMATS or analysis.collectives:
        text = frame_text(analysis.frame, format, options.columns)
    else:
        text = rows_text(analysis.rows, format=format, columns=options.columns)
    if options.file is None:
        return text
    write_output(options.file, text)
    say(f"the table is in {options.file}")
    return None


def _report_page(options: ReportOptions, path: Path, analysis: Analysis) -> Answer:
    """The table of the rows that are asked for; the page of all rows is written, and opened."""
    from dpbench.report.answers.report import report_answer
    from dpbench.report.page import page_path, page_path_in, write_page

    page = None
    if options.output is not None:
        page = options.file or page_path_in(options.output)
    elif not is_table(path):
        page = page_path(path)
    chosen = select_rows(analysis, options)
    answer = partial(report_answer, chosen, columns=options.columns, verbose=options.verbose)
    shown = answer(page=page)
    # A current page in the results folder may have charts; any other may show another sweep.
    if page and options.output:
        write_page(page, analysis, charts=options.charts)
    elif page and (options.charts or not _is_current(page, path)):
        page = _write_page(path, analysis, charts=options.charts)
        shown = shown if page else answer()
    if page and options.open:
        import webbrowser

        address = page.resolve().as_uri()
        if not webbrowser.open(address):
            say(f"no browser was found; open {address} in one")
    return shown


def _is_current(page: Path, results: Path) -> bool:
    """Whether the page in a results folder was written after its last measurement."""
    is_there = page.is_file() and not page.is_symlink()
    return is_there and page.stat().st_mtime >= last_measured(results)


def plot(options: PlotOptions) -> str:
    """Draw charts into a folder; the text lists their files.

    Raises UsageError for a chart that was asked for by its name and has nothing to show.
    """
    from dpbench.report.charts.figures import house_style, stem_of, write_figure
    from dpbench.report.page import charts_folder

    draws_all = ALL_CHARTS in options.kinds
    kinds = [CHARTS[name] for name in (CHARTS if draws_all else options.kinds)]
    sweeps_only = any(kind.is_of_sweeps for kind in kinds)
    path = options.path or latest_folder("plot", sweeps_only=sweeps_only)
    if options.output is None and is_table(path):
        raise UsageError(
            f"{path} is a table, which has no folder for charts; say where they go: --output FOLDER"
        )
    analysis = read_analysis(path)
    warn(*analysis.warnings)
    analysis = select_rows(analysis, options)
    folder = options.output or charts_folder(path)
    drawn: dict[str, Figure] = {}
    empty = list[str]()
    with house_style():
        for kind, shown in product(kinds, analysis.by_work):
            stem = first_free(stem_of(kind.name, shown.work), lambda free: free in drawn)
            try:
                drawn[stem] = kind.draw(shown)
            except NothingToDraw as reason:
                empty.append(f"no chart {stem}: {reason}")
        if empty and not (draws_all and drawn):
            raise UsageError(f"{path}: {'; '.join(empty)}")
        say(*empty)
        folder.mkdir(parents=True, exist_ok=True)
        written = [
            write_figure(figure, folder / f"{stem}.{image}")
            for stem, figure in drawn.items()
            for image in options.format
        ]
    return "".join(f"{file}\n" for file in written)


def compare(options: CompareOptions) -> Answer:
    """Compare two sweeps, or parts of them. Raises NotComparable, UsageError and FileError."""
    from dpbench.analysis.comparisons.comparison import compare_sides
    from dpbench.report.answers.compare import comparison_answer

    (before, now), warnings = load_sides(options.baseline, options.candidate)
    warn(*warnings)
    compared = compare_sides(before, now, force=options.force)
    return comparison_answer(compared, options.metric, within=options.within)
