"""Ranks that take orders from another host only run the code that their own command named.

An architecture, a dataset or a step can be any "package.module:function", which is imported and
called: the sender of the orders, or anyone who impersonates it, must not choose it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.architecture import is_theirs
from dpbench.architecture.naming import parse
from dpbench.data.registry import is_function
from dpbench.errors import UsageError
from dpbench.messages import printable

LONGEST_SHOWN = 100
"""Most characters shown of a name from another host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedCode:
    """The user's code that this process's command names in --arch, --data and --step."""

    architecture: str | None
    dataset: str | None
    step: str | None = None

    def refusal(
        self,
        *,
        dataset: str,
        architecture: str | None = None,
        step: str | None = None,
    ) -> str | None:
        """Why an order is refused; None if it names no other code than the command."""
        try:
            if _code(architecture) not in (None, _code(self.architecture)):
                return _words("--arch", architecture, self.architecture)
        except UsageError as error:
            return str(error)
        if dataset != self.dataset and is_function(dataset):
            return _words("--data", dataset, self.dataset)
        if step not in (None, self.step):
            return _words("--step", step, self.step)
        return None


def _code(architecture: str | None) -> tuple[str, str] | None:
    """The user's file or module, and the function in it; None for an architecture of dpbench's."""
    if architecture is None or not is_theirs(architecture):
        return None
    name = parse(architecture)
    return name.origin, name.factory


def _words(option: str, ordered: str | None, named: str | None) -> str:
    return (
        f"the order is for {option} {printable(str(ordered), LONGEST_SHOWN)}, the command here for "
        f"{named or 'none'}; expected the same command everywhere"
    )
