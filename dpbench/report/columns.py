"""The columns of a table of configurations: which there are, which were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields.field import ReadField, Value
from dpbench.analysis.fields.levels import COLUMNS
from dpbench.errors import UnknownName, UsageError
from dpbench.printable import one_line

SEED = "seed"
CLAIMED = "As the source of the numbers states it; nobody measured it here."

Column = ReadField[ConfigurationSummary]
Keys = tuple[str, ...]

DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.shown != "on request")


def parse_columns(text: str) -> tuple[Column, ...]:
    """Reads --columns a,b,c; raises UnknownName or UsageError. ("seed" is a layout of its own.)"""
    return tuple(COLUMNS[name] for name in parse_keys(text, COLUMNS))


def parse_keys(text: str, known: Iterable[str], *, layouts: Sequence[str] = (SEED,)) -> Keys:
    """The same for other keys; `layouts` are what else --columns takes, for the error."""
    names = tuple(name.strip() for name in text.split(","))
    keys = tuple(known)
    for name in names:
        if name not in keys:
            raise UnknownName("column", name, [*keys, *layouts])
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UsageError(f"--columns {text!r}: expected each column once, got {doubled[0]} twice")
    return names


def header_of(words: str, rows: Sequence[ConfigurationSummary]) -> str:
    """A header with the item that the rows count in place of {Item}, if it is one."""
    items = {row.item for row in rows if row.throughput} or {row.item for row in rows}
    item = one_line(items.pop()) if len(items) == 1 else "items"
    return words.replace("{Item}", item[:1].upper() + item[1:])


def claim_columns(rows: Sequence[ConfigurationSummary]) -> tuple[Column, ...]:
    """A column for everything that a published file claims and nobody measured."""

    def read(name: str) -> Callable[[ConfigurationSummary], Value]:
        return lambda row: dict(row.claims).get(name)

    names = dict.fromkeys(name for row in rows for name, _ in row.claims)
    return tuple(
        ReadField(
            key=name,
            header=f"{_claim_words(name)} (claimed)",
            wrapped=f"{_claim_words(name)}\n(claimed)",
            meaning=CLAIMED,
            shown="always",
            read=read(name),
        )
        for name in names
    )


def _claim_words(name: str) -> str:
    words = name.removesuffix("_claimed").split("_")
    spelled = [
        word.upper() if word in ("gb", "gpu", "mb", "gib", "mib") else word for word in words
    ]
    spelled[0] = spelled[0][:1].upper() + spelled[0][1:]
    return " ".join(spelled)
