"""`dpbench.check`: the command of the same name, called from Python."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from dpbench.api.calls import as_path, measuring_call, takes_options
from dpbench.errors import UsageError
from dpbench.options.check import CheckOptions
from dpbench.options.reading import fields_by_name, read_options
from dpbench.options.script import is_script

if TYPE_CHECKING:
    from dpbench.api.results import Results
    from dpbench.report.answer import Answer


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
        StoreError: A folder cannot be used.
        KeyboardInterrupt: After Ctrl-C.
    """
    place = as_path(arch)
    if place is not arch or (isinstance(place, str) and is_script(place)):
        raise UsageError(
            f'arch: got "{place}"; expected a model as in "my_model.py:make"; for a training '
            f'script or stored results write candidate="{place}"'
        )
    options |= {"arch": arch, "candidate": as_path(candidate), "baseline": as_path(baseline)}
    given = fields_by_name(CheckOptions, "dpbench.check: ", options, of_python=True)
    with measuring_call("dpbench.check", progress=progress):
        from dpbench.report.progress.trials import TrialProgress
        from dpbench.run.check.checking import run_check

        return run_check(read_options(CheckOptions, given), TrialProgress(quiet=not progress))
