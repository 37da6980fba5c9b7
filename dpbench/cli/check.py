"""`dpbench check`: is the candidate slower than its baseline, by more than is tolerated?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpbench.cli import sweep_grammar as grammar
from dpbench.errors import UsageError

EXIT_STATUSES = """Exit status: 0 pass, or inconclusive without --strict; 1 measuring failed in
some row; 2 usage; 3 regressed; 4 inconclusive with --strict; 5 baseline and candidate cannot be
compared; 6 wrong gradients; 130 interrupted."""

VERDICT = "Verdict"
MEASURING = "Measuring, without CANDIDATE"
OUTPUT = "Output"

AXES = (
    "implementations",
    "backends",
    "batch_sizes",
    "group_sizes",
    "arch",
    "data",
    "steps",
    "warmup",
    "gpus",
    "threads",
    "oversubscribe",
)
"""Options that say what is measured; a sweep that is run again has its own."""
EFFORT = ("repetitions", "budget", "name", "results_dir", "data_dir", "quiet")
"""Options of whatever is measured."""


def check(
    context: typer.Context,
    candidate: Annotated[
        str | None,
        typer.Argument(
            metavar="[CANDIDATE]",
            help="A results folder, or a part of it as in dpbench compare. Without it the "
            "candidate is measured now.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="A results folder to compare with; without CANDIDATE its sweep is run again.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="An implementation to compare with, measured in turn with the candidate: for "
            "shared machines.",
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="P%", rich_help_panel=VERDICT, help="How much worse is no regression [3%]."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=P%]",
            rich_help_panel=VERDICT,
            help="images_per_second (default), efficiency, exposed_communication_seconds, "
            "peak_memory_bytes, …; several, each with a tolerance of its own if it has one.",
        ),
    ] = None,
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--not-strict", rich_help_panel=VERDICT, help="Inconclusive is a failure too."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", rich_help_panel=VERDICT, help="Compare in spite of different environments."
        ),
    ] = False,
    repetitions: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            rich_help_panel=MEASURING,
            help="Fresh runs of every row to begin with; more while it is inconclusive [5].",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", rich_help_panel=MEASURING, help="When to stop adding runs [5m]."
        ),
    ] = None,
    name: grammar.Name = None,
    results_dir: grammar.ResultsDir = Path("results"),
    data_dir: grammar.DataDir = None,
    quiet: grammar.Quiet = False,
    implementations: grammar.Implementations = "ddp",
    backends: grammar.Backends = None,
    batch_sizes: grammar.BatchSizes = "64",
    group_sizes: grammar.GroupSizes = None,
    arch: grammar.Arch = "mnist_cnn",
    data: grammar.Data = None,
    steps: Annotated[
        str,
        typer.Option(metavar="N", rich_help_panel=grammar.SETTINGS, help="Timed steps, exactly."),
    ] = "50",
    warmup: grammar.Warmup = "10",
    gpus: grammar.Gpus = None,
    threads: grammar.Threads = None,
    oversubscribe: grammar.Oversubscribe = False,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=OUTPUT, help="The verdict as JSON on stdout.")
    ] = False,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Write JUnit XML."),
    ] = None,
    benchmark_action: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=OUTPUT, help="Write JSON for github-action-benchmark."
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Write Markdown."),
    ] = None,
    github: Annotated[
        bool,
        typer.Option(
            "--github", rich_help_panel=OUTPUT, help="Append Markdown to $GITHUB_STEP_SUMMARY."
        ),
    ] = False,
    synthetic: grammar.Synthetic = False,
) -> int:
    """Check for a regression: regressed, pass or inconclusive, on whole runs, row by row.

    dpbench check --against torch-ddp --tolerance 5%
    """
    typed = locals()
    given = {key for key in (*AXES, *EFFORT) if is_typed(context, key)}
    _check_combination(candidate, baseline, against, given)
    from dpbench.analysis.metrics import METRICS
    from dpbench.cli.thresholds import resolve

    thresholds = resolve(typed, METRICS)
    from dpbench.cli.gate import Gate, check_again, check_against, check_stored
    from dpbench.cli.gate_sweep import Target
    from dpbench.cli.verdict_outputs import Outputs

    outputs = Outputs(
        as_json=as_json,
        junit=junit,
        benchmark_action=benchmark_action,
        markdown=markdown,
        github=github,
    )
    gate = Gate(thresholds=thresholds, force=force, outputs=outputs)
    target = Target(
        name=name, results_dir=results_dir, data_dir=data_dir, quiet=quiet, synthetic=synthetic
    )
    if against is not None:
        return check_against(gate, against, {key: typed[key] for key in AXES}, target)
    assert baseline is not None
    if candidate is not None:
        return check_stored(gate, candidate, baseline)
    return check_again(gate, Path(baseline), target)


def is_typed(context: typer.Context, key: str) -> bool:
    """Tells whether the option was given, rather than left at its default."""
    source = context.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def _check_combination(
    candidate: str | None, baseline: str | None, against: str | None, given: set[str]
) -> None:
    """Raises UsageError for options that would have no effect, and for too many or no baseline."""
    if (baseline is None) == (against is None):
        raise UsageError(
            f"{'two baselines' if baseline else 'nothing to compare with'}: expected one of "
            "--baseline DIR (a results folder) and --against NAME (an implementation, e.g. "
            "torch-ddp)"
        )
    if against is not None:
        if candidate is not None:
            raise UsageError(
                f"{candidate} with --against {against}, which measures both now; to compare parts "
                f"of what is stored: {candidate}:implementation=ddp --baseline "
                f"{candidate}:implementation={against}"
            )
        return
    forbidden = (*AXES, *EFFORT) if candidate is not None else AXES
    done = (
        f"{candidate} is measured" if candidate is not None else f"{baseline} is run again as it is"
    )
    for key in forbidden:
        if key in given:
            raise UsageError(f"--{key.replace('_', '-')} has no effect, as {done}; leave it out")
