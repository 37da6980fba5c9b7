"""The kinds of values that options take, from text, from Python and from a config file alike.

A kind stands in an annotation, as in `Annotated[int, WholeNumber(least=1)]`. Nothing is coerced,
clamped or dropped in silence: a wrong value is a ValueError that says what was expected.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationInfo
from pydantic_core import core_schema

from dpbench.architecture.naming import NOT_BEFORE_OPTION

T = TypeVar("T")

NOTES = "notes"
"""The key of a validation's context under which notes for the user are collected."""
MOST_DIGITS = 18
LONGEST_DURATION_SECONDS = 30 * 24 * 3600.0
_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Kind:
    """Base of the kinds: pydantic calls `parse` to read a value and `dump` to write it as JSON."""

    schema: Mapping[str, Any] = {}

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

    def __get_pydantic_json_schema__(self, _core: Any, _handler: Any) -> dict[str, Any]:
        return {**self.schema}


@dataclass(frozen=True, eq=False)
class WholeNumber(Kind):
    """An integer from `least` to `most`."""

    least: int = 0
    most: int = 10**MOST_DIGITS - 1
    word: str | None = None
    """A word that may stand in place of a number."""
    none: str | None = None
    """A word that means None."""

    def parse(self, value: Any) -> int | str | None:
        value = _plain(value)
        if isinstance(value, str) and value == self.word:
            return value
        if self.none is not None and (value is None or value == self.none):
            return None
        number = int(value) if isinstance(value, str) and _is_integer(value) else value
        if type(number) is not int or not self.least <= number <= self.most:
            raise ValueError(f"expected {self._expected()}")
        return number

    def dump(self, value: Any) -> Any:
        return self.none if value is None else value

    @property
    def schema(self) -> dict[str, Any]:  # type: ignore[override]
        number = {"type": "integer", "minimum": self.least}
        words = [word for word in (self.word, self.none) if word]
        return {"anyOf": [number, {"enum": words}]} if words else number

    def _expected(self) -> str:
        most = f" to {self.most:,}" if self.most < 10**MOST_DIGITS - 1 else " or more"
        words = "".join(f", or {word}" for word in (self.word, self.none) if word)
        return f"a whole number, {self.least}{most}{words}"


@dataclass(frozen=True, eq=False)
class PositiveNumber(Kind):
    """A finite number above 0."""

    least: float = 0.0
    most: float = math.inf
    unit: str = ""
    none: str | None = None
    """A word that means None."""

    def parse(self, value: Any) -> float | None:
        value = _plain(value)
        if self.none is not None and (value is None or value == self.none):
            return None
        number = _number(value)
        if not (0 < number < math.inf and self.least <= number <= self.most):
            raise ValueError(f"expected {self._expected()}")
        return number

    def dump(self, value: Any) -> Any:
        return self.none if value is None else value

    @property
    def schema(self) -> dict[str, Any]:  # type: ignore[override]
        number = {"type": "number", "exclusiveMinimum": 0}
        return {"anyOf": [number, {"enum": [self.none]}]} if self.none else number

    def _expected(self) -> str:
        bounds = f" from {self.least:,g}" if self.least else ""
        bounds += f" up to {self.most:,.0f} {self.unit}".rstrip() if self.most < math.inf else ""
        word = f", or {self.none}" if self.none else ""
        return f"a number above 0{bounds}, as in 0.5, 2 or 1e-3{word}"


@dataclass(frozen=True, eq=False)
class Choice(Kind):
    """One of some names; a mapping gives several spellings of one name."""

    names: Collection[str] | Mapping[str, str]
    hidden: Mapping[str, str] | None = None
    """Spellings of other tools with the name that each means; accepted, not listed."""

    def parse(self, value: Any) -> str:
        name = value.strip() if isinstance(value, str) else value
        if self.hidden is not None and isinstance(name, str) and name in self.hidden:
            return self.hidden[name]
        if not isinstance(name, str) or name not in self.names:
            raise ValueError(expected_name(name, self.names))
        return self.names[name] if isinstance(self.names, Mapping) else name

    @property
    def offered(self) -> tuple[str, ...]:
        """Each name once, in its own spelling."""
        names = self.names.values() if isinstance(self.names, Mapping) else self.names
        return tuple(dict.fromkeys(names))

    @property
    def schema(self) -> dict[str, Any]:  # type: ignore[override]
        return {"enum": [*self.offered]}


class _Percentage(Kind):
    schema = {"type": "string", "pattern": "%$"}  # noqa: RUF012 - read only

    def __init__(self, example: str) -> None:
        self._example = example

    def parse(self, value: Any) -> float:
        text = value.strip() if isinstance(value, str) else ""
        number = _number(text.removesuffix("%")) if text.endswith("%") else math.nan
        if not 0 < number < 100:
            raise ValueError(
                f"expected a percentage above 0 % and below 100 %, written as {self._example}"
            )
        return number / 100

    def dump(self, value: Any) -> Any:
        return None if value is None else f"{round(100 * value, 12):g}%"


class _Duration(Kind):
    schema = {"anyOf": [{"type": "number"}, {"type": "string"}]}  # noqa: RUF012 - read only

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def parse(self, value: Any) -> float:
        value = _plain(value)
        factor = _UNITS.get(value.strip()[-1:]) if isinstance(value, str) else None
        seconds = _number(value) if factor is None else _number(value.strip()[:-1]) * factor
        if not (0 < seconds <= LONGEST_DURATION_SECONDS and seconds >= self._least):
            least = f" of at least {self._least:g} s" if self._least else ""
            raise ValueError(
                f"expected a duration{least}, in seconds or as 90s, 5m or 1h, at most 30 days"
            )
        return seconds

    def dump(self, value: Any) -> Any:
        return None if value is None else duration_text(value)


class _Gpus(Kind):
    schema = {"anyOf": [{"type": "integer"}, {"type": "string"}]}  # noqa: RUF012 - read only

    def parse(self, value: Any) -> int | tuple[int, ...]:
        expected = "expected a number of GPUs, or distinct ids as in 0,1 (0, is the device 0)"
        value = _plain(value)
        if isinstance(value, str) and "," not in value:
            value = int(value) if _is_integer(value) else value
        if type(value) is int and value >= 1:
            return value
        ids = value.removesuffix(",").split(",") if isinstance(value, str) else value
        if not isinstance(ids, list | tuple) or not ids:
            raise ValueError(expected)
        try:
            found = tuple(WholeNumber().parse(one) for one in ids)
        except ValueError:
            raise ValueError(expected) from None
        if len({*found}) < len(found):
            raise ValueError(f"{expected}; an id is listed twice")
        return found  # type: ignore[return-value]  # no word stands for a number here

    def dump(self, value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        return ",".join(map(str, value)) + "," * (len(value) == 1)


class _FilePath(Kind):
    schema = {"type": "string"}  # noqa: RUF012 - read only

    def parse(self, value: Any) -> Path:
        if not isinstance(value, str | PathLike) or not str(fspath(value)):
            raise ValueError("expected the name of a file or folder; '.' is the current folder")
        return Path(value)

    def dump(self, value: Any) -> Any:
        return None if value is None else str(value)


Count = Annotated[int, WholeNumber(least=1)]
"""A positive integer."""
Number = Annotated[int, WholeNumber()]
"""0 or a positive integer."""
Percent = Annotated[float, _Percentage("3% or 0.5%")]
"""A share, as a fraction, from text such as "3%": a bare number could mean 5 % or 500 %."""
Efficiency = Annotated[float, _Percentage("90% or 99.5%")]
Duration = Annotated[float, _Duration()]
"""Seconds, from 90, "90s", "5m" or "1h"."""
Gpus = Annotated[int | tuple[int, ...], _Gpus()]
"""A number of GPUs, or their ids."""
FilePath = Annotated[Path, _FilePath()]
"""A file or folder."""


def duration_of_at_least(seconds: float) -> Kind:
    """The kind of a duration that is not shorter than this."""
    return _Duration(seconds)


def split_commas(value: Any) -> list[Any]:
    """The items of "a,b,c", of a list, an array or a generator; one value is a list of it."""
    return _items(value, lambda text: text.split(","))


def _split_names(value: Any) -> list[Any]:
    return _items(value, NOT_BEFORE_OPTION.split)


def _unique(values: tuple[T, ...], info: ValidationInfo) -> tuple[T, ...]:
    """Drops repeated values, with a note."""
    found = tuple(dict.fromkeys(values))
    if len(found) < len(values) and info.context is not None:
        twice = next(one for at, one in enumerate(values) if one in values[:at])
        option = f"--{str(info.field_name).replace('_', '-')}"
        info.context[NOTES].append(f"{option}: {twice} is listed twice; it counts once")
    return found


CommaList = Annotated[tuple[T, ...], BeforeValidator(split_commas), AfterValidator(_unique)]
"""A list with commas between its values, or a list."""
NameList = Annotated[tuple[str, ...], BeforeValidator(_split_names), AfterValidator(_unique)]
"""The same for names that options may follow: mlp:width=4,depth=3."""


def expected_name(name: object, names: Collection[str]) -> str:
    """What an error says of a name that is not known, with the nearest one that is."""
    plain = {one.lower(): one for one in names}
    typed = name.lower() if isinstance(name, str) else ""
    near = [one for one in plain if typed and one.startswith(typed)]
    near = near or difflib.get_close_matches(typed, plain, n=1, cutoff=0.5)
    guess = f"did you mean {plain[near[0]]!r}? " if near else ""
    return f"{guess}expected {'one of ' if len(names) > 1 else ''}{', '.join(names)}"


def duration_text(seconds: float) -> str:
    """A time in the largest unit that holds it in whole numbers: "5m"."""
    for unit, size in sorted(_UNITS.items(), key=lambda item: -item[1]):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _items(value: Any, split: Callable[[str], list[str]]) -> list[Any]:
    value = _plain(value)
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("expected a comma-separated list, or leave it out")
        parts = [part.strip() for part in split(value)]
        if not all(parts):
            raise ValueError("expected no empty entry; remove the extra comma")
        return parts
    if isinstance(value, bytes | Mapping | Set):
        raise ValueError("expected text, a number or a list")
    items = [*value] if hasattr(value, "__iter__") else [value]
    if not items:
        raise ValueError("expected at least one value, or leave it out")
    return items


def _plain(value: Any) -> Any:
    """A value of numpy or torch as Python's own; text without blanks around it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, str):
        return value.strip()
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return operator.index(value)
    return value


def _is_integer(text: str) -> bool:
    return bool(_INTEGER.fullmatch(text)) and len(text) <= MOST_DIGITS


def _number(value: Any) -> float:
    """NaN for what is no number; float() alone would read 1_0 and ١٢ as well."""
    if isinstance(value, str):
        return float(value) if _DECIMAL.fullmatch(value.strip()) else math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else math.nan
