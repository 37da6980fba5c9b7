"""`dpbench.check`: the command of the same name, called from Python, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpbench.api.calls import measuring_call
from dpbench.options.bridge import document, keyed, read_options
from dpbench.options.check import CheckOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckVerdict:
    """A verdict; `print` shows what the command prints."""

    outcome: Literal["pass", "regressed", "inconclusive"]
    exit_status: int
    """The exit status of the command, which is not 0 if a trial failed, whatever the outcome."""
    summary: str
    """The outcome and its numbers in one line."""
    text: str
    data: Mapping[str, Any]
    """The verdict as `dpbench check --json` prints it, with one of its `rows` per comparison."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<CheckVerdict: {self.summary}>"


def check(arch: Any = None, *, progress: bool = True, **options: Any) -> CheckVerdict:
    """Check for a performance regression, like `dpbench check`.

        >>> dpbench.check("my_model.py:make", against_ref="origin/main").outcome
        >>> dpbench.check(candidate="results/new", baseline="results/old").summary

    Give `against_ref` to compare your code with a Git revision, `against_python` to compare this
    environment with another one, `against` to compare `implementations` with another one, or
    `candidate` and `baseline` to compare stored sweeps. A `candidate` may be a training script.
    `progress` prints on stderr.

    Returns:
        The verdict. A regression does not raise.

    Raises:
        UsageError: An argument is invalid.
        NotComparable: There is nothing to compare.
        StoreError: A folder cannot be used.
        KeyboardInterrupt: After Ctrl-C.
    """
    given = keyed(CheckOptions, "dpbench.check: ", {"arch": arch, **options}, of_python=True)
    with measuring_call("dpbench.check", progress=progress):
        from dpbench.report.progress.trials import Reporter
        from dpbench.run.gate import request

        asked = read_options(CheckOptions, given)
        asked.require_one_baseline(given)
        found = request.check(asked, Reporter(quiet=not progress))
    named = {name: found.data[name] for name in ("outcome", "exit_status", "summary")}
    return CheckVerdict(**named, text=found.text, data=found.data)


document(check, CheckOptions)
