"""Which rows of a sweep a command is about: --implementations, --backends, and so on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dpbench.cli.values import comma_list

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """The values to keep; None for all."""

    implementations: tuple[str, ...] | None
    backends: tuple[str, ...] | None
    group_sizes: tuple[int, ...] | None
    batch_sizes: tuple[int, ...] | None

    def passes(self, row: ConfigurationSummary) -> bool:
        pairs = (
            (self.implementations, family(row)),
            (self.backends, row.backend),
            (self.group_sizes, row.group_size),
            (self.batch_sizes, row.batch_size),
        )
        return all(wanted is None or value in wanted for wanted, value in pairs)


def family(row: ConfigurationSummary) -> str:
    """The name that --implementations takes: of "local-sgd(4)", local-sgd."""
    return row.implementation.partition("(")[0]


def only(what: str, name: str, metavar: str, *, panel: str = "Which rows") -> Any:
    """An option that keeps rows."""
    return typer.Option(
        f"--{name}s",
        f"--{name}",
        metavar=metavar,
        rich_help_panel=panel,
        help=f"Only these {what}.",
    )


def listed(
    option: str, text: str | None, parse: Callable[[str, str], T], notes: list[str]
) -> tuple[T, ...] | None:
    """The values of such an option; None if it was left out."""
    return None if text is None else comma_list(option, text, parse, notes)
