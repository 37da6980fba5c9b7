"""Which rows of a sweep a command is about: --implementations, --backends, and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dpbench.messages import say
from dpbench.values import comma_list, positive_int

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """The values to keep; None for all."""

    implementations: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    group_sizes: tuple[int, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None

    def passes(self, row: ConfigurationSummary) -> bool:
        pairs = (
            (self.implementations, family(row)),
            (self.backends, row.backend),
            (self.group_sizes, row.group_size),
            (self.batch_sizes, row.batch_size),
        )
        return all(wanted is None or value in wanted for wanted, value in pairs)


def parse_filter(
    implementations: str | None,
    backends: str | None,
    group_sizes: str | None,
    batch_sizes: str | None,
) -> RowFilter:
    """From the options as they were typed; names need not be known ones, for `choices` tells."""
    notes: list[str] = []
    wanted = RowFilter(
        implementations=filter_values("--implementations", implementations, _name, notes),
        backends=filter_values("--backends", backends, _name, notes),
        group_sizes=filter_values("--group-sizes", group_sizes, positive_int, notes),
        batch_sizes=filter_values("--batch-sizes", batch_sizes, positive_int, notes),
    )
    say(*notes)
    return wanted


def choices(rows: Sequence[ConfigurationSummary]) -> str:
    """Values that the filters can choose from."""
    values: dict[str, list[Any]] = {
        "--implementations": [family(row) for row in rows],
        "--backends": [row.backend for row in rows],
        "--group-sizes": [row.group_size for row in rows],
        "--batch-sizes": [row.batch_size for row in rows],
    }
    return "; ".join(
        f"{option} {', '.join(map(str, dict.fromkeys(found)))}" for option, found in values.items()
    )


def family(row: ConfigurationSummary) -> str:
    """The name that --implementations takes: of "local-sgd(4)", local-sgd."""
    return row.implementation.partition("(")[0]


def filter_values(
    option: str, text: str | None, parse: Callable[[str, str], T], notes: list[str]
) -> tuple[T, ...] | None:
    """The values of such an option; None if it was left out."""
    return None if text is None else comma_list(option, text, parse, notes)


def _name(option: str, token: str) -> str:
    return token.strip()
