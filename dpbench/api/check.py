"""`dpbench.check`: the command of the same name, called from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpbench.api.calls import measuring_call, takes_options
from dpbench.options.check import CheckOptions
from dpbench.options.reading import fields_by_name, read_options

if TYPE_CHECKING:
    from dpbench.report.answer import Answer


@takes_options(CheckOptions)
def check(arch: str | None = None, *, progress: bool = True, **options: Any) -> Answer:
    """Check for a performance regression, like `dpbench check`.

        >>> dpbench.check("my_model.py:make", against_ref="origin/main").data["outcome"]
        >>> dpbench.check(candidate="results/new", baseline="results/old").data["summary"]

    Give `against_ref` to compare your code with a Git revision, `against_python` to compare this
    environment with another one, `against` to compare `implementations` with another one, or
    `candidate` and `baseline` to compare stored sweeps. A `candidate` may be a training script.
    `progress` prints on stderr.

    Returns:
        What the command prints as `text`, and the verdict of its `--json` as `data`, with the keys
        `outcome`, `exit_status`, `summary` and `rows`. A regression does not raise.

    Raises:
        UsageError: An argument is invalid.
        NotComparable: There is nothing to compare.
        StoreError: A folder cannot be used.
        KeyboardInterrupt: After Ctrl-C.
    """
    given = fields_by_name(
        CheckOptions, "dpbench.check: ", {"arch": arch, **options}, of_python=True
    )
    with measuring_call("dpbench.check", progress=progress):
        from dpbench.report.progress.trials import TrialProgress
        from dpbench.run.check.checking import run_check

        return run_check(read_options(CheckOptions, given), TrialProgress(quiet=not progress))
