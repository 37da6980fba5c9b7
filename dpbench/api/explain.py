"""`dpbench.explain`: the command of the same name, called from Python."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from dpbench.api.calls import as_path, measuring_call, takes_options
from dpbench.options.explain import ExplainOptions
from dpbench.options.reading import fields_by_name, read_options
from dpbench.options.script import is_script

if TYPE_CHECKING:
    from dpbench.api.results import Results
    from dpbench.report.answer import Answer


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
        StoreError: The folder cannot be used.
        TrainingFailed: The script failed.
        KeyboardInterrupt: After Ctrl-C.
    """
    place = options["results_or_script"] = as_path(results_or_script)
    measures = "module" in options or (isinstance(place, str) and is_script(place))
    given = fields_by_name(ExplainOptions, "dpbench.explain: ", options, of_python=True)
    with measuring_call("dpbench.explain", progress=progress, alone=measures):
        from dpbench.report.progress.trials import TrialProgress
        from dpbench.run import explaining

        wanted = read_options(ExplainOptions, given)
        return explaining.explain(wanted, TrialProgress(quiet=not progress))
