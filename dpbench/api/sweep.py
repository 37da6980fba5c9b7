"""`dpbench.sweep`: the command of the same name, called from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench.api.calls import measuring_call, takes_options
from dpbench.api.results import Results
from dpbench.options.reading import fields_by_name, read_options
from dpbench.options.sweep import SweepOptions


@takes_options(SweepOptions)
def sweep(
    arch: str | Sequence[str] | None = None,
    *,
    report: bool = False,
    progress: bool = True,
    **options: Any,
) -> Results:
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
        its row has a status and a reason.

    Raises:
        UsageError: An argument is invalid.
        StoreError: The results folder cannot be used.
        DataError: The dataset cannot be used.
        KeyboardInterrupt: After Ctrl-C; finished trials are stored, and the message says how to
            resume.
    """
    given = fields_by_name(
        SweepOptions, "dpbench.sweep: ", {"arch": arch, **options}, of_python=True
    )
    with measuring_call("dpbench.sweep", progress=progress):
        from dpbench.report.progress.trials import TrialProgress
        from dpbench.run import presets
        from dpbench.run.sweep.measuring import measure
        from dpbench.run.sweep.plan import plan_sweep

        measured = read_options(SweepOptions, given, presets.find)
        with plan_sweep(measured) as plan:
            results = Results(measure(plan, TrialProgress(quiet=not progress)))
    if report:
        results.write_report(charts=measured.charts)
    return results
