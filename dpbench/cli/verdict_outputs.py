"""Outputs of a check's verdict: the terminal, and files for CI systems."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer

from dpbench.analysis.comparisons.verdict import Assessment
from dpbench.errors import StoreError, UsageError
from dpbench.files import write_text
from dpbench.report.verdict import answer, benchmark_action, junit, pull_request, tool
from dpbench.run.gate.thresholds import Thresholds

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The outputs that were asked for besides the table."""

    as_json: bool
    junit: Path | None
    benchmark_action: Path | None
    markdown: Path | None
    github: bool

    def check(self, metrics: Collection[str]) -> None:
        """Raises what `write` would raise for reasons that are known before anything is run."""
        if self.benchmark_action is not None:
            tool(metrics)
        if self.github and not os.environ.get(STEP_SUMMARY):
            raise UsageError(
                f"--github: {STEP_SUMMARY} is not set, so this is no GitHub workflow; "
                "use --markdown FILE"
            )
        summary = Path(os.environ[STEP_SUMMARY]) if self.github else None
        for path in (self.junit, self.benchmark_action, self.markdown, summary):
            if path is not None and not path.parent.is_dir():
                raise UsageError(f"{path}: the folder {path.parent} does not exist; make it first")
            if path is not None and path.is_dir():
                raise UsageError(f"{path} is a folder; expected a file, e.g. {path / 'check.out'}")

    def write(self, assessment: Assessment, thresholds: Thresholds, exit_status: int) -> None:
        """Prints the table, or JSON, and writes the files."""
        failed = (f"{label}: {how}" for label, how in assessment.failures)
        notes = [*failed, *assessment.notes, thresholds.describe()]
        verdict = assessment.verdict
        found = answer(assessment, notes, exit_status=exit_status)
        typer.echo(found.shown(as_json=self.as_json), nl=False)
        if self.junit is not None:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
            text = junit(assessment, strict=thresholds.strict, notes=notes, started_utc=now)
            write_text(self.junit, text)
        if self.benchmark_action is not None:
            write_text(self.benchmark_action, benchmark_action(verdict))
            typer.echo(
                f"{self.benchmark_action} is for the tool {tool(thresholds.tolerances)}", err=True
            )
        if self.markdown is not None:
            write_text(self.markdown, pull_request(verdict, notes))
        if self.github:
            _append(Path(os.environ[STEP_SUMMARY]), pull_request(verdict, notes))


def _append(path: Path, text: str) -> None:
    """Other steps of the job write their summaries there too."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
