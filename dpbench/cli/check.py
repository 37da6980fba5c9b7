"""`dpbench check`, which looks for a regression."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpbench.errors import UsageError
from dpbench.files import write_text
from dpbench.options.bridge import Layer, command, file_layers, option_name, read
from dpbench.options.check import CheckOptions, RepeatedOptions
from dpbench.options.shared import MachineOptions
from dpbench.run import presets

if TYPE_CHECKING:
    from dpbench.analysis.comparisons.verdict import Assessment
    from dpbench.run.gate.thresholds import Thresholds

PLACE = ("results_dir", "quiet", "data_dir", "name")
AXES = tuple(
    name
    for name in (*RepeatedOptions.model_fields, *MachineOptions.model_fields)
    if name not in PLACE
)
"""Options that say what is measured; a sweep that is run again has its own."""
MEASURING = (*AXES, "repetitions", "budget", *PLACE)
"""Options that have no effect where nothing is measured."""
OTHER_VERSION = tuple(name for name in CheckOptions.model_fields if name.startswith("against_"))
"""Options that name another version of the code."""


@command(CheckOptions)
def check(given: dict[str, Any]) -> int:
    """Check for a performance regression, in CI or by hand.

    dpbench check --arch model.py:make --against-ref origin/main --tolerance 5%

    Exit status: 0 pass, or inconclusive without --strict; 1 some row failed;
    2 usage; 3 regressed; 4 inconclusive with --strict; 5 baseline and candidate
    cannot be compared; 6 wrong gradients; 130 interrupted.
    """
    from dpbench.data.user_code import code_in

    options = read(CheckOptions, *file_layers(CheckOptions, given, presets.find), Layer("", given))
    again = options.candidate is None and options.baseline is not None
    theirs = code_in(given) if again else {}
    _check_combination(options, given.keys() - theirs.keys())
    from dpbench.run.gate.judging import (
        Gate,
        MeasuredFolder,
        check_again,
        check_against,
        check_stored,
    )
    from dpbench.run.gate.thresholds import thresholds_of

    thresholds = thresholds_of(options)
    outputs = Outputs(as_json=options.as_json, junit=options.junit, markdown=options.markdown)
    gate = Gate(thresholds=thresholds, force=options.force, outputs=outputs)
    target = MeasuredFolder(**{key: getattr(options, key) for key in PLACE})
    axes = {key: getattr(options, key) for key in AXES}
    versions = {key.removeprefix("against_"): getattr(options, key) for key in OTHER_VERSION}
    if any(value is not None for value in versions.values()):
        from dpbench.run.gate.beside import Other, check_beside

        return check_beside(gate, Other(**versions), axes, target)
    if options.against is not None:
        return check_against(gate, options.against, axes, target)
    assert options.baseline is not None
    if options.candidate is not None:
        return check_stored(gate, options.candidate, options.baseline)
    return check_again(gate, options.baseline, target, theirs)


def _check_combination(options: CheckOptions, given: Set[str]) -> None:
    """Raises UsageError for options that would have no effect, and for too many or no baseline."""
    candidate, baseline = options.candidate, options.baseline
    known = ("baseline", "against", *OTHER_VERSION)
    baselines = [key for key in known if getattr(options, key) is not None]
    if len(baselines) != 1:
        raise UsageError(
            f"{'two baselines' if baselines else 'nothing to compare with'}: expected one of "
            "--baseline DIR (a results folder), --against NAME (an implementation, e.g. "
            "torch-ddp), --against-ref REV (your code at a git revision), --against-arch NAME and "
            "--against-python PATH"
        )
    against = f"{_option(baselines[0])} {getattr(options, baselines[0])}"
    if baseline is None and candidate is not None:
        raise UsageError(
            f"{candidate} with {against}, which measures both now; leave {candidate} out, or "
            "compare what is stored: --baseline DIR, or a part of it as DIR:implementation=NAME"
        )
    useless: tuple[str, ...] = ("force",)
    if baseline is None:
        reason = f"{against} measures both here"
    elif candidate is not None:
        useless, reason = MEASURING, f"{candidate} is measured"
    else:
        useless, reason = AXES, f"{baseline} is run again as it is"
    for key in useless:
        if key in given:
            raise UsageError(f"{_option(key)} has no effect, as {reason}; leave it out")


def _option(key: str) -> str:
    return option_name(CheckOptions, key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The outputs of a verdict: the terminal, and files for CI systems that were asked for."""

    as_json: bool
    junit: Path | None
    markdown: Path | None

    def check(self) -> None:
        """Raises what `write` would raise for reasons that are known before anything is run."""
        for path in (self.junit, self.markdown):
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                raise UsageError(f"{path}: expected the name of a file in a folder that exists")

    def write(self, assessment: Assessment, thresholds: Thresholds, exit_status: int) -> None:
        """Prints the table, or JSON, and writes the files."""
        from dpbench.report.verdict import answer
        from dpbench.report.verdict_files import junit, pull_request

        failed = (f"{label}: {how}" for label, how, _ in assessment.failures)
        notes = [*failed, *assessment.notes, thresholds.describe()]
        found = answer(assessment, notes, exit_status=exit_status)
        typer.echo(found.render(as_json=self.as_json), nl=False)
        if self.junit is not None:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
            text = junit(assessment, strict=thresholds.strict, notes=notes, started_utc=now)
            write_text(self.junit, text)
        if self.markdown is not None:
            write_text(self.markdown, pull_request(assessment.verdict, notes))
