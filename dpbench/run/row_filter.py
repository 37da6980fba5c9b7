"""The options that choose rows of results, and the filter that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from dpbench.messages import say
from dpbench.run.shared_options import option
from dpbench.specs.settings import Kind, Parsed, Setting, from_texts
from dpbench.values import positive_int

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary

ROWS_PANEL = "Which rows"


def _name(option: str, token: str) -> str:
    """A name, which need not be a known one: `filter_choices` says which there are."""
    return token.strip()


def _only(what: str, name: str, kind: Kind, metavar: str) -> Setting:
    return option(
        f"--{name}s",
        kind,
        f"Show only these {what}.",
        ROWS_PANEL,
        also=(f"--{name}",),
        several=True,
        metavar=metavar,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """The values to keep; None for all."""

    implementations: Annotated[
        tuple[str, ...] | None, _only("implementations", "implementation", Parsed(_name), "A,B")
    ] = None
    backends: Annotated[
        tuple[str, ...] | None, _only("backends", "backend", Parsed(_name), "A,B")
    ] = None
    group_sizes: Annotated[
        tuple[int, ...] | None,
        _only("numbers of replicas", "group-size", Parsed(positive_int), "N,N"),
    ] = None
    batch_sizes: Annotated[
        tuple[int, ...] | None, _only("batch sizes", "batch-size", Parsed(positive_int), "N,N")
    ] = None

    def passes(self, row: ConfigurationSummary) -> bool:
        pairs = (
            (self.implementations, _implementation(row)),
            (self.backends, row.backend),
            (self.group_sizes, row.group_size),
            (self.batch_sizes, row.batch_size),
        )
        return all(wanted is None or value in wanted for wanted, value in pairs)


def parse_filter(**texts: str | None) -> RowFilter:
    """Reads the options as they were typed, by the fields of a RowFilter. Raises UsageError."""
    notes: list[str] = []
    wanted = from_texts(RowFilter, texts, notes)
    say(*notes)
    return wanted


def filter_choices(rows: Sequence[ConfigurationSummary]) -> str:
    """The values that the options can choose from."""
    values: dict[str, list[Any]] = {
        "--implementations": [_implementation(row) for row in rows],
        "--backends": [row.backend for row in rows],
        "--group-sizes": [row.group_size for row in rows],
        "--batch-sizes": [row.batch_size for row in rows],
    }
    return "; ".join(
        f"{option} {', '.join(map(str, dict.fromkeys(found)))}" for option, found in values.items()
    )


def _implementation(row: ConfigurationSummary) -> str:
    """The name that --implementations takes: local-sgd for a row "local-sgd(4)"."""
    return row.implementation.partition("(")[0]
