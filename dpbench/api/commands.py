"""The commands that measure, called from Python: `dpbench.sweep`, `explain` and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from dpbench.analysis.analyze import analyze
from dpbench.api.calls import as_path, python_call, takes_options
from dpbench.api.results import Results
from dpbench.options.check import CheckOptions
from dpbench.options.explain import ExplainOptions
from dpbench.options.sweep import SweepOptions
from dpbench.report.answer import Answer
from dpbench.report.progress.trials import TrialProgress
from dpbench.run import explaining
from dpbench.run.check import checking
from dpbench.run.sweep.answer import launched_sweep


@takes_options(SweepOptions)
def sweep(
    arch: str | Sequence[str] | None = None,
    *,
    report: bool = False,
    progress: bool = True,
    **options: Any,
) -> Results | None:
    """Benchmark implementations, backends, group sizes and batch sizes, like `dpbench sweep`.

        >>> results = dpbench.sweep("mlp", batch_sizes=[32, 64], gpus=2)
        >>> results.rows[["implementation", "group_size", "speedup"]]

    Every option that affects the measurement is an argument: `--batch-sizes 32,64` is
    `batch_sizes=[32, 64]`. Omit an argument, or pass None, for its default or the value of the
    `preset`. `arch` is a name, because each rank imports the model: "mlp", "my_model.py:make" or
    "my_package.models:make". Each trial is stored in a folder in `results_dir` as soon as it ends;
    `report` also writes the page of the command, and `progress` prints on stderr.

    Returns:
        The results, as `dpbench.load` reads them from the folder. A failed trial does not raise:
        its row has a status and a reason. Under a launcher, and on several nodes, only the process
        that records has results; the others return None.

    Raises:
        UsageError: An argument is invalid, or the dataset cannot be used.
        FileError: The results folder cannot be used.
        KeyboardInterrupt: After Ctrl-C; finished trials are stored, and the message says how to
            resume.
    """
    given = {"arch": arch, **options}
    with (
        python_call("dpbench.sweep", SweepOptions, given, progress=progress) as measured,
        launched_sweep(measured) as run,
    ):
        if run is None:
            return None
        stored = run.measure(TrialProgress(quiet=not progress))
    results = Results(analyze(stored), stored.folder)
    if report:
        results.write_report(charts=measured.charts)
    return results


@takes_options(ExplainOptions)
def explain(
    results_or_script: str | PathLike[str] | Results | None = None,
    *,
    progress: bool = True,
    **options: Any,
) -> Answer:
    """Show where scaling efficiency is lost and what to try, like `dpbench explain`.

        >>> print(dpbench.explain("results/examples/two-cores", group_sizes=2))
        >>> dpbench.explain("train.py", arguments=["--epochs", "1"], gpus=2).data["configurations"]

    `results_or_script` is a results folder or its `Results`, whose rows the options choose, or a
    training script, which is measured first. Omit it for the latest folder in results/. `progress`
    prints on stderr.

    Returns:
        What the command prints as `text`, and all that its `--json` has as `data`.

    Raises:
        UsageError: An argument is invalid, or no row can be explained.
        FileError: The folder cannot be used.
        TrainingFailed: The script failed.
        KeyboardInterrupt: After Ctrl-C.
    """
    options["results_or_script"] = as_path(results_or_script)
    with python_call("dpbench.explain", ExplainOptions, options, progress=progress) as wanted:
        return explaining.explain(wanted, TrialProgress(quiet=not progress))


@takes_options(CheckOptions)
def check(
    arch: str | None = None,
    *,
    candidate: str | PathLike[str] | Results | None = None,
    baseline: str | PathLike[str] | Results | None = None,
    progress: bool = True,
    **options: Any,
) -> Answer:
    """Check for a performance regression, like `dpbench check`.

        >>> dpbench.check("my_model.py:make", against_ref="origin/main").data["outcome"]
        >>> dpbench.check(candidate="results/new", baseline="results/old").data["summary"]

    Give `against_ref` to compare your code with a Git revision, `against_python` to compare this
    environment with another one, `against` to compare `implementations` with another one, or
    `candidate` and `baseline` to compare stored sweeps, which are folders or `Results`. A
    `candidate` may be a training script. `progress` prints on stderr.

    Returns:
        What the command prints as `text`, and the verdict of its `--json` as `data`, with the keys
        `outcome`, `exit_status`, `summary` and `rows`. A regression does not raise.

    Raises:
        UsageError: An argument is invalid.
        NotComparable: There is nothing to compare.
        FileError: A folder cannot be used.
        KeyboardInterrupt: After Ctrl-C.
    """
    options |= {"arch": arch, "candidate": as_path(candidate), "baseline": as_path(baseline)}
    with python_call("dpbench.check", CheckOptions, options, progress=progress) as wanted:
        return checking.check(wanted, TrialProgress(quiet=not progress))
