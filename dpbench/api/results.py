"""The content of a results folder in Python: `dpbench.load`, and how it looks in a notebook."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from dpbench import store, units
from dpbench.analysis import frames
from dpbench.analysis.headline import Headline
from dpbench.analysis.subject import Subject, of_folder
from dpbench.errors import UnknownName, UsageError
from dpbench.files import folder_inside
from dpbench.messages import one_line, say
from dpbench.options.bridge import read_value
from dpbench.options.types import FilePath
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.report.charts.style import house_style
from dpbench.report.footnotes import footnotes, warnings
from dpbench.report.headline import verdict
from dpbench.report.tables import rows_text
from dpbench.specs import SweepSpec
from dpbench.store import StoredCollectives, StoredSweep

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("implementation", "backend", "group_size", "batch_size"),
    *("images_per_second", "speedup", "efficiency", "exposed_communication_seconds", "status"),
)
"""Columns that fit a page of a notebook; the frame has all."""
MOST_ROWS = 60
"""A notebook keeps every output; the frame has the rest."""


class Results:
    """Contents of a results folder when it was read: a sweep or collectives.

    Columns of frames are stable and have their unit in the name; unmeasured values are missing.
    Frames keep the numbers that tables replace by "too noisy".
    """

    def __init__(
        self,
        *,
        sweep: StoredSweep | None = None,
        collectives: StoredCollectives | None = None,
    ) -> None:
        """Takes one of the two."""
        self._sweep = sweep
        self._collectives = collectives

    @cached_property
    def _subject(self) -> Subject:
        return of_folder(self._stored)

    @property
    def _stored(self) -> StoredSweep | StoredCollectives:
        stored = self._sweep or self._collectives
        assert stored is not None
        return stored

    @property
    def _records(self) -> Sequence[TrialRecord]:
        return self._sweep.records if self._sweep else ()

    @property
    def summary(self) -> str:
        """The headline, one sentence for each of `headlines`."""
        if self._sweep is None:
            return "Collectives only: no training was measured."
        return " ".join(verdict(self.headlines))

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per configuration, with the ends of intervals."""
        return frames.to_frame(self._subject.rows)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial; if it was retried, the last attempt."""
        return frames.trial_frame(self._records)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row per rank of a trial."""
        return frames.rank_frame(self._records)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step, window and rank."""
        return frames.step_frame(self._records)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """One row per collective, backend, group size and message size."""
        return frames.collective_frame(self._collectives.records if self._collectives else ())

    def table(
        self,
        format: str | None = None,
        columns: str | Sequence[str] | None = None,
        width: int | None = None,
    ) -> str:
        """The table of configurations as text, in any format of `dpbench report`.

        `columns` are keys; `width` is that of a terminal to fit into. Raises UnknownName for a
        format or a column that is not known.
        """
        keys = columns if columns is None or isinstance(columns, str) else ",".join(columns)
        return rows_text(self._subject.rows, format=format, columns=keys, width=width)

    def plot(self, kind: str = "throughput", *, work: str | None = None) -> Figure:
        """A chart, as `dpbench plot` draws it; `work` is a key of `headlines`, required if there
        are several.

        Raises UnknownName for an unknown kind, and UsageError for another `work` or a chart that
        has nothing to show here.
        """
        if kind not in CHARTS:
            raise UnknownName("chart", kind, CHARTS)
        charts = {one.work: one for one in CHARTS[kind].subjects(self._subject)}
        if work is None and len(charts) == 1:
            (work,) = charts
        if work not in charts:
            known = f"expected {' or '.join(map(repr, charts))}"
            only = "leave it out, as these results have only one"
            raise UsageError(f"plot: got work={work!r}; {known if len(charts) > 1 else only}")
        try:
            with house_style():
                figure = CHARTS[kind].draw(charts[work])
        except NothingToDraw as error:
            raise UsageError(f"nothing to draw as {kind!r} in {self.folder}: {error}") from None

        def png() -> bytes:
            written = io.BytesIO()
            with house_style():
                figure.savefig(written, format="png")
            return written.getvalue()

        # A notebook asks for this: it knows the figures of pyplot only, which charts do not use.
        setattr(figure, "_repr_png_", png)  # noqa: B010 - a figure declares none
        return figure

    def compare(self, other: Results, metric: str = "images_per_second") -> pd.DataFrame:
        """A comparison with the sweep `other`, the candidate: one row per configuration that both
        have. The columns are the keys of `compare`'s JSON rows.

        Raises UsageError for what is no sweep, UnknownName for an unknown metric, and
        NotComparable, a UsageError, if the environments differ or no configuration is in both.
        """
        import pandas as pd

        from dpbench.analysis.comparisons.comparison import compare_sides
        from dpbench.analysis.comparisons.matching import Side
        from dpbench.analysis.metrics import METRICS
        from dpbench.options.compare import CompareOptions
        from dpbench.report.comparison import plain_comparison

        if metric not in METRICS:
            raise UnknownName("metric", metric, METRICS)
        sides = []
        for one in (self, other):
            if not isinstance(one, Results) or one._sweep is None:
                raise UsageError(
                    f"other: got {one!r}; expected a sweep, as dpbench.load returns it"
                )
            folder, sweep = one.folder, one._sweep
            sides.append(
                Side(
                    label=str(folder),
                    records=sweep.records,
                    environments=sweep.environments,
                    source=str(folder.resolve()),
                )
            )
        before, now = sides
        compared = compare_sides(before, now, {metric: CompareOptions().within})
        say(*compared.notes)
        return pd.DataFrame([plain_comparison(row) for row in compared.rows[metric]])

    def write_report(self, *, charts: bool = True) -> Path:
        """Write the page of `dpbench report` into the folder, and return its path.

        Raises StoreError if it cannot be written.
        """
        from dpbench.report.page import PAGE, REPORT_FOLDER, write_page

        folder = folder_inside(self.folder, REPORT_FOLDER)
        return write_page(folder / PAGE, self._subject, charts=charts)

    @property
    def headlines(self) -> dict[str, Headline]:
        """The fastest configuration and the best scaling, for each architecture and kind of scaling
        that the sweep compares; the key is "" if there is only one."""
        return self._subject.headlines

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings, as on the page of a report: unreadable data, speeds whose gradients were not
        verified, steps that were still warming up."""
        return warnings(self._subject)

    @property
    def notes(self) -> tuple[str, ...]:
        """More notes: hints for the next sweep."""
        return self._subject.hints

    @property
    def spec(self) -> SweepSpec | None:
        """The specification of the sweep; None if the folder holds collectives."""
        return None if self._sweep is None else self._sweep.spec

    @property
    def environments(self) -> Mapping[str, Environment]:
        """Environments of the records, by the identifiers that records refer to."""
        return self._stored.environments

    @property
    def folder(self) -> Path:
        """The results folder that was read."""
        return self._stored.folder

    def __repr__(self) -> str:
        parts = []
        if self._sweep is not None:
            ended = Counter(row.status.words for row in self._subject.rows)
            each = ", ".join(f"{count:,} {words}" for words, count in ended.items())
            counted = units.counted(len(self._subject.rows), "configuration")
            parts.append(f"{counted} ({each})" if each else counted)
        if self._collectives is not None:
            measured = {record.collective.configuration for record in self._collectives.records}
            parts.append(units.counted(len(measured), "collective"))
        return f"<Results {str(self.folder)!r}: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """HTML for a notebook: no scripts, no styles of its own but alignment."""
        every, notes = self._subject.rows, self.notes
        parts = [f"<p><strong>{_plain(self.summary)}</strong></p>"] if self.spec else []
        parts += [f"<p>⚠ {_plain(warning)}</p>" for warning in self.warnings]
        if every:
            keys = ",".join(COLUMNS)
            table = rows_text(every[:MOST_ROWS], format="html", columns=keys)
            parts.append(f'<div style="overflow-x: auto">\n{table}</div>')
            notes = (*footnotes(every), *notes)
        if len(every) > MOST_ROWS:
            parts.append(f"<p>The first {MOST_ROWS} of {len(every):,} rows.</p>")
        if notes:
            items = "\n".join(f"<li>{_plain(note)}</li>" for note in notes)
            heading = units.counted(len(notes), "note")
            parts.append(f"<details><summary>{heading}</summary>\n<ul>{items}</ul>\n</details>")
        parts.append(f"<p><code>{_plain(repr(self))}</code></p>")
        return "\n".join(["<div>", *parts, "</div>"])


def _plain(text: str) -> str:
    """One line without what a terminal or a browser would act upon."""
    return escape(one_line(text))


def load(path: str | PathLike[str]) -> Results:
    """Read a results folder of `dpbench sweep` or `dpbench comm`; nothing in it is executed.

        >>> results = dpbench.load("results/examples/two-cores")
        >>> print(results.summary)

    Returns:
        The results, with frames of pandas such as `rows` and `trials`.

    Raises:
        UsageError: `path` is not a path.
        StoreError: `path` is not a results folder.
        NewerSchema: The folder comes from a later version of dpbench.
    """
    folder = read_value("path", FilePath, path)
    if store.holds_collectives(folder) and not store.holds_sweep(folder):
        return Results(collectives=store.load_collectives(folder))
    return Results(sweep=store.load(folder))
