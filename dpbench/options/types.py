"""The kinds of values that options take, from text, from Python and from a config file alike.

A kind stands in an annotation, as in `Annotated[int, WholeNumber(least=1)]`. Nothing is coerced,
clamped or dropped in silence: a wrong value is a ValueError that says what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationInfo
from pydantic_core import core_schema

from dpbench.architecture.naming import NOT_BEFORE_OPTION
from dpbench.errors import nearest_name

T = TypeVar("T")

MOST_DIGITS = 18
LONGEST_DURATION_SECONDS = 30 * 24 * 3600.0
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_TIME_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


class Kind:
    """Base of the kinds: pydantic calls `parse` to read a value and `dump` to write it as JSON."""

    def parse(self, value: Any) -> Any:
        """Returns the value; raises ValueError that says what was expected."""
        raise NotImplementedError

    def dump(self, value: Any) -> Any:
        """The value as a config file has it; `parse` reads it back."""
        return value

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            self.parse,
            serialization=core_schema.plain_serializer_function_ser_schema(
                self.dump, when_used="json"
            ),
        )


@dataclass(frozen=True, eq=False)
class WholeNumber(Kind):
    """An integer from `least` to `most`."""

    least: int = 0
    most: int = 10**MOST_DIGITS - 1

    def parse(self, value: Any) -> int:
        value = _plain(value)
        number = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
        if type(number) is not int or not self.least <= number <= self.most:
            most = f" to {self.most:,}" if self.most < 10**MOST_DIGITS - 1 else " or more"
            raise ValueError(f"expected a whole number, {self.least}{most}")
        return number


@dataclass(frozen=True, eq=False)
class PositiveNumber(Kind):
    """A finite number above 0."""

    most: float = math.inf

    def parse(self, value: Any) -> float:
        number = _number(_plain(value))
        if not (0 < number < math.inf and number <= self.most):
            bound = f" up to {self.most:,.0f}" if self.most < math.inf else ""
            raise ValueError(f"expected a number above 0{bound}, as in 0.5, 2 or 1e-3")
        return number


@dataclass(frozen=True, eq=False)
class OrWord(Kind):
    """A value of another kind, or a word with a meaning of its own."""

    kind: Kind
    word: str
    meaning: str | None = None

    def parse(self, value: Any) -> Any:
        value = _plain(value)
        if value is self.meaning or value == self.word:
            return self.meaning
        try:
            return self.kind.parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {self.word}") from None

    def dump(self, value: Any) -> Any:
        return self.word if value == self.meaning else value


@dataclass(frozen=True, eq=False)
class Choice(Kind):
    """One of some names; a mapping gives several spellings of a name."""

    names: Collection[str] | Mapping[str, str]

    def parse(self, value: Any) -> str:
        name = value.strip() if isinstance(value, str) else value
        if not isinstance(name, str) or name not in self.names:
            raise ValueError(expected_name(name, self.names))
        return self.names[name] if isinstance(self.names, Mapping) else name


class _Percentage(Kind):
    def parse(self, value: Any) -> float:
        text = value.strip() if isinstance(value, str) else ""
        number = _number(text.removesuffix("%")) if text.endswith("%") else math.nan
        if not 0 < number < 100:
            guess = f"; did you mean {text}%?" if 1 <= _number(text) < 100 else ""
            raise ValueError(
                f"expected a percentage above 0 % and below 100 %, as in 3% or 99.5%{guess}"
            )
        return number / 100

    def dump(self, value: Any) -> Any:
        return None if value is None else f"{round(100 * value, 12):g}%"


class _Duration(Kind):
    def parse(self, value: Any) -> float:
        value = _plain(value)
        factor = _TIME_UNITS.get(value[-1:]) if isinstance(value, str) else None
        seconds = _number(value) if factor is None else _number(value[:-1]) * factor
        if not 0 < seconds <= LONGEST_DURATION_SECONDS:
            raise ValueError("expected a duration, in seconds or as 90s, 5m or 1h, at most 30 days")
        return seconds

    def dump(self, value: Any) -> Any:
        for unit, size in _TIME_UNITS.items():
            if value is not None and (value % size == 0 or unit == "s"):
                return f"{value / size:g}{unit}"
        return None


class _Gpus(Kind):
    def parse(self, value: Any) -> int | tuple[int, ...]:
        value = _plain(value)
        try:
            if isinstance(value, int) or (isinstance(value, str) and "," not in value):
                return WholeNumber(least=1).parse(value)
            ids = value.removesuffix(",").split(",") if isinstance(value, str) else value
            found = tuple(WholeNumber().parse(one) for one in ids)
        except (TypeError, ValueError):
            found = ()
        if not found or len({*found}) < len(found):
            raise ValueError(
                "expected a number of GPUs, or distinct ids as in 0,1 ('0,' is GPU 0 alone)"
            )
        return found

    def dump(self, value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        return ",".join(map(str, value)) + "," * (len(value) == 1)


class _FilePath(Kind):
    def parse(self, value: Any) -> Path:
        if not isinstance(value, str | PathLike) or not str(value):
            raise ValueError("expected the name of a file or folder; '.' is the current folder")
        return Path(value)

    def dump(self, value: Any) -> Any:
        return None if value is None else str(value)


Count = Annotated[int, WholeNumber(least=1)]
"""A positive integer."""
Number = Annotated[int, WholeNumber()]
"""0 or a positive integer."""
Percent = Annotated[float, _Percentage()]
"""A share, as a fraction, from text such as "3%": a bare number could mean 5 % or 500 %."""
Duration = Annotated[float, _Duration()]
"""Seconds, from 90, "90s", "5m" or "1h"."""
Gpus = Annotated[int | tuple[int, ...], _Gpus()]
"""A number of GPUs, or their ids."""
FilePath = Annotated[Path, _FilePath()]
"""A file or folder."""


def split_commas(value: Any) -> list[Any]:
    """The items of "a,b,c", of a list, an array or a generator; one value is a list of it."""
    return _items(value, lambda text: text.split(","))


def _unique(values: tuple[T, ...], info: ValidationInfo) -> tuple[T, ...]:
    """Each value once, in order; the context of a validation learns which fields had duplicates."""
    kept = tuple(dict.fromkeys(values))
    if len(kept) < len(values) and info.context is not None:
        info.context[info.field_name] = kept
    return kept


CommaList = Annotated[tuple[T, ...], BeforeValidator(split_commas), AfterValidator(_unique)]
"""A list with commas between its values, or a list."""
NameList = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: _items(value, NOT_BEFORE_OPTION.split)),
    AfterValidator(_unique),
]
"""The same for names that options may follow: mlp:width=4,depth=3."""


def expected_name(name: object, names: Collection[str] | Mapping[str, str]) -> str:
    """What an error says of a name that is not known, with the nearest one that is."""
    near = nearest_name(name, names) if isinstance(name, str) else None
    spellings = names if isinstance(names, Mapping) else {one: one for one in names}
    guess = f"did you mean {spellings[near]!r}? Expected" if near else "expected"
    offered = dict.fromkeys(spellings.values())
    return f"{guess} {'one of ' if len(offered) > 1 else ''}{', '.join(offered)}"


def _items(value: Any, split: Callable[[str], list[str]]) -> list[Any]:
    value = _plain(value)
    if isinstance(value, str):
        if not value:
            raise ValueError("expected a comma-separated list, or leave it out")
        parts = [part.strip() for part in split(value)]
        if not all(parts):
            raise ValueError("expected no empty entry; remove the extra comma")
        return parts
    items = [*value] if hasattr(value, "__iter__") else [value]
    if not items:
        raise ValueError("expected at least one value, or leave it out")
    return items


def _plain(value: Any) -> Any:
    """A value of numpy or torch as Python's own; text without blanks around it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.strip() if isinstance(value, str) else value


def _number(value: Any) -> float:
    """NaN for what is no number; float() alone would read 1_0 and ١٢ as well."""
    if isinstance(value, str):
        return float(value) if _DECIMAL.fullmatch(value.strip()) else math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else math.nan
