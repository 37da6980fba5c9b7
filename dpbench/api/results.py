"""The content of a results folder in Python: `dpbench.load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis import frames
from dpbench.analysis.analyze import Analysis, read_folder
from dpbench.analysis.collectives import Collectives
from dpbench.errors import UsageError, unknown_name
from dpbench.options.reading import read_value
from dpbench.options.types import FilePath
from dpbench.records.environment import Environment
from dpbench.report.answers.report import headline_sentences
from dpbench.report.charts.figures import house_style
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.report.configurations import rows_text
from dpbench.report.page import page_path, page_text, write_page
from dpbench.specs import SweepSpec

if TYPE_CHECKING:
    import pandas as pd


class Results:
    """Contents of a results folder when it was read: a sweep or collectives.

    Columns of frames are stable and have their unit in the name; unmeasured values are missing.
    Frames keep the numbers that tables replace by "too noisy".
    """

    def __init__(self, content: Analysis | Collectives, folder: Path) -> None:
        self._content = content
        # Collectives have neither rows nor trials.
        self._training = content if isinstance(content, Analysis) else Analysis(name="")
        self._folder = folder

    @property
    def summary(self) -> str:
        """The headline: the fastest configuration of each architecture and batch size, and how well
        it scales."""
        sentences = headline_sentences(self._training)
        return "\n".join(sentences) or "Collectives only: no training was measured."

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per configuration, with the ends of intervals."""
        return self._training.frame

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial; if it was retried, the last attempt."""
        return frames.trial_frame(self._training.records)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row per rank of a trial."""
        return frames.rank_frame(self._training.records)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step, window and rank."""
        return frames.step_frame(self._training.records)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """One row per collective, backend, group size and message size."""
        rows = self._content.rows if isinstance(self._content, Collectives) else ()
        return frames.collective_frame(rows)

    def table(
        self,
        format: str | None = None,
        columns: str | Sequence[str] | None = None,
        width: int | None = None,
    ) -> str:
        """The table of configurations as text, in any format of `dpbench report`.

        `columns` are keys; `width` is that of a terminal to fit into. Raises UsageError for a
        format or a column that is not known, and for collectives.
        """
        if isinstance(self._content, Collectives):
            raise UsageError("table: these results are collectives; expected .collectives")
        keys = columns if columns is None or isinstance(columns, str) else ",".join(columns)
        return rows_text(self._training.rows, format=format, columns=keys, width=width)

    def plot(self, kind: str = "throughput", *, work: str | None = None) -> Figure:
        """A chart, as `dpbench plot` draws it; `work` is the architecture, required if there are
        several.

        Raises UsageError for an unknown kind, another `work` or a chart that has nothing to show
        here.
        """
        if kind not in CHARTS:
            raise unknown_name("chart", kind, CHARTS)
        charts = self._content.by_work
        if work is None and len(charts) == 1:
            (work,) = charts
        if work is None or work not in charts:
            known = f"expected {' or '.join(map(repr, charts))}"
            only = "leave it out, as these results have only one"
            raise UsageError(f"plot: got work={work!r}; {known if len(charts) > 1 else only}")
        try:
            with house_style():
                return CHARTS[kind].draw(charts[work])
        except NothingToDraw as error:
            raise UsageError(f"nothing to draw as {kind!r} in {self.folder}: {error}") from None

    def write_report(self, *, charts: bool = True) -> Path:
        """Write the page of `dpbench report` into the folder, and return its path.

        Raises FileError if it cannot be written.
        """
        return write_page(page_path(self.folder), page_text(self._content, charts=charts))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings, as on the page of a report: unreadable data, speeds whose gradients were not
        verified, steps that were still warming up."""
        return self._content.warnings

    @property
    def spec(self) -> SweepSpec | None:
        """The specification of the sweep; None if the folder holds collectives."""
        sweep = self._training.sweep
        return sweep.spec if sweep else None

    @property
    def environments(self) -> Mapping[str, Environment]:
        """Environments of the records, by the identifiers that records refer to."""
        return self._content.environments

    @property
    def folder(self) -> Path:
        """The results folder that was read."""
        return self._folder

    def __repr__(self) -> str:
        """The folder, and what it holds."""
        kind = "collective" if self.spec is None else "trial"
        return f"<Results {str(self.folder)!r}: {units.counted(len(self._content.records), kind)}>"


def load(path: str | PathLike[str]) -> Results:
    """Read a results folder of `dpbench sweep` or `dpbench comm`; nothing in it is executed.

        >>> results = dpbench.load("results/examples/two-cores")
        >>> print(results.summary)

    Returns:
        The results, with frames of pandas such as `rows` and `trials`.

    Raises:
        UsageError: `path` is not a path.
        FileError: `path` is not a results folder.
    """
    folder = read_value("path", FilePath, path)
    return Results(read_folder(folder), folder)
