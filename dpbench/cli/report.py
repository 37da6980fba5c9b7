"""`dpbench report`: results as a table, a page with charts, or rows for other programs."""

from __future__ import annotations

from typing import Any

from dpbench.cli.show_results import show, show_rows
from dpbench.cli.signature import command
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.options.reading import read_options
from dpbench.options.results import ReportOptions


@command(ReportOptions)
def report(typed: dict[str, Any]) -> None:
    """Show results as a table, and write an HTML page with charts.

    dpbench report results/demo --open

    dpbench report results/demo --output table.csv

    With --format or a file for rows, it writes rows and no page. Options that choose rows apply to
    the printed output; the page always has all rows.
    """
    options = read_options(ReportOptions, typed)
    from dpbench.run.results import is_current, is_table, latest_folders, read_analysis, select_rows

    path = options.path or latest_folders("report", sweeps_only=False)[0]
    if options.open and options.output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    analysis = read_analysis(path)
    chosen = select_rows(analysis, options)
    format = options.rows_format
    if analysis.collectives and options.columns:
        format = format or "csv"
    if format is not None:
        show_rows(chosen, format, options.columns, options.file)
        if options.file is not None:
            say(f"the table is in {options.file}")
        return
    from dpbench.report.page import page_path, page_path_in, write_page

    page = options.file
    if page is None and options.output is not None:
        page = page_path_in(options.output)
    elif page is None and not is_table(path):
        page = page_path(path)
    show(
        chosen,
        page=page,
        columns=options.columns,
        to_explain=None if is_table(path) else path,
        verbose=options.verbose,
    )
    if page is not None:
        if options.file or options.charts or not is_current(page, path):  # it may have charts
            write_page(page, analysis, charts=options.charts)
        if options.open:
            import webbrowser

            address = page.resolve().as_uri()
            if not webbrowser.open(address):
                say(f"no browser was found; open {address} in one")
