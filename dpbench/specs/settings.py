"""Settings: how a setting is asked for, which values it takes, and how a row shows it.

A setting is declared once, on the field of a spec or of the options of a command that holds it:
`field: Annotated[type, Setting(…)] = default`. Tables of settings are derived from there.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar, get_type_hints

from dpbench.errors import UsageError
from dpbench.values import (
    MOST_DIGITS,
    NOT_BEFORE_OPTION,
    at_commas,
    comma_list,
    integer,
    known_name,
    percentage,
    positive_float,
)

O = TypeVar("O")  # noqa: E741
Texts = Mapping[str, Any]
"""Options as they are typed, by the fields that hold them; None where one is left out."""
Scope = Literal["work", "node", "start", "call"]
"""Scope of an option, which decides where else its value may come from: the measured or trained
work; a node, so that the nodes of a sweep do not compare it (it may differ, only node 0 follows it,
or their meeting checks it); one start of a training, so that a resumption does not take it over; or
one call of the command, so that no file has it."""


class Auto(enum.Enum):
    """The type of AUTO."""

    AUTO = "auto"

    def __repr__(self) -> str:
        return "AUTO"


AUTO: Final = Auto.AUTO
"""The value of an option that is left to dpbench, which decides by the machine and the data."""


class Kind(Protocol):
    """The values that a setting takes."""

    def parse(self, option: str, token: str) -> Any:
        """Reads one value as it is typed; raises UsageError that names the option."""
        ...

    def takes(self, value: object) -> bool:
        """Whether a Python value is one of these as it is; others are read as they print."""
        ...


class ReadAsPrinted:
    """Kinds that read every Python value as it prints."""

    __slots__ = ()

    def takes(self, value: object) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some names."""

    names: Collection[str] | Mapping[str, str]
    """A mapping has several spellings of one name."""
    noun: str = "name"
    also: tuple[str, ...] = ()
    """Words of other tools, which are taken and not offered."""

    def parse(self, option: str, token: str) -> str:
        if token.strip() in self.also:
            return token.strip()
        name = known_name(option, token, self.names)
        return self.names[name] if isinstance(self.names, Mapping) else name

    def takes(self, value: object) -> bool:
        return value in self.canonical

    @property
    def canonical(self) -> tuple[str, ...]:
        """Each name once, in its own spelling."""
        names = self.names.values() if isinstance(self.names, Mapping) else self.names
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """An integer from `least` on."""

    least: int = 0
    most: int | None = None

    def parse(self, option: str, token: str) -> int:
        count = integer(option, token, least=self.least)
        if self.most is not None and count > self.most:
            raise UsageError(f"{option} {count:,}: expected at most {self.most:,}")
        return count

    def takes(self, value: object) -> bool:
        if type(value) is not int:
            return False
        return self.least <= value <= (self.most or 10**MOST_DIGITS - 1)


@dataclass(frozen=True, slots=True)
class CountOr(ReadAsPrinted):
    """A positive integer, or a word that stands in its place."""

    word: str
    offers_word: bool = True
    """Whether an error mentions the word."""

    def parse(self, option: str, token: str) -> int | str:
        if token.strip() == self.word:
            return self.word
        try:
            return integer(option, token, least=1)
        except UsageError as error:
            raise UsageError(
                f"{error}, or {self.word}" if self.offers_word else str(error)
            ) from None

    def takes(self, value: object) -> bool:
        return WholeNumber(least=1).takes(value)


@dataclass(frozen=True, slots=True)
class PositiveNumber:
    """A finite number above 0."""

    most: float = math.inf
    unit: str = ""

    def parse(self, option: str, token: str) -> float:
        number = positive_float(option, token)
        if number > self.most:
            raise UsageError(f"{option} {number:g}: expected at most {self.most:,.0f} {self.unit}")
        return number

    def takes(self, value: object) -> bool:
        return type(value) is float and 0 < value <= self.most and value < math.inf


class Switch(ReadAsPrinted):
    """Yes or no, as a value of a list."""

    def parse(self, option: str, token: str) -> bool:
        return known_name(option, token, ("no", "yes")) == "yes"

    def takes(self, value: object) -> bool:
        return isinstance(value, bool)


class NameWithOptions(ReadAsPrinted):
    """A name that options may follow: mlp:width=4,depth=3. Whoever uses it checks it."""

    def parse(self, option: str, token: str) -> str:
        return token.strip()


class Flag(ReadAsPrinted):
    """An option without a value."""

    def parse(self, option: str, token: object) -> bool:
        return bool(token)

    def takes(self, value: object) -> bool:
        return isinstance(value, bool)


class Text(ReadAsPrinted):
    """Any text; whoever uses it checks it."""

    def parse(self, option: str, token: str) -> str:
        return token


class RowRules(Text):
    """Rules on rows, which a file may write as a list of tables."""


class Several(ReadAsPrinted):
    """An option that may be given more than once."""

    def parse(self, option: str, token: list[str]) -> tuple[str, ...]:
        return tuple(token)


class PathName(ReadAsPrinted):
    """A file or folder."""

    def parse(self, option: str, token: str | Path) -> Path:
        return Path(token)

    def takes(self, value: object) -> bool:
        return isinstance(value, Path)


class Percentage(ReadAsPrinted):
    """A share as text, as in "5%"; a bare number could mean 5 % or 500 %."""

    def parse(self, option: str, token: str) -> float:
        return percentage(option, token)


@dataclass(frozen=True, slots=True)
class Parsed(ReadAsPrinted):
    """Value that a function returns for the option's name and the token."""

    read: Callable[[str, str], Any]

    def parse(self, option: str, token: str) -> Any:
        return self.read(option, token)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting: of a trial, where a list of its values makes rows, or of a command."""

    options: tuple[str, ...]
    """Names of the option on the command line; messages use the first."""
    kind: Kind
    help: str
    meaning: str = ""
    """Meaning of a column with its values; empty if rows have none."""
    metavar: str | None = None
    several: bool = False
    """Whether it takes a list."""
    scope: Scope = "work"
    in_python: bool = True
    """Whether Python calls have it."""
    decides: tuple[str, ...] = ()
    """Fields of a specification that the option decides, if they are not called like its own."""
    instead_of: str | None = None
    """Another option whose place it takes: the one in the upper layer counts, typed ones first."""
    panel: str | None = None
    """The heading under which help has it."""
    default_text: str | None = None
    """Help text for the default, if that is not simply a value."""
    typed_default: str | None = None
    """The default as it is typed, where its value prints otherwise."""
    hidden: bool = False
    common: bool = False
    """Whether the short help of a command with many options has it."""
    elsewhere: str = ""
    """Names of the option in other programs, separated by blanks: not accepted, but an error
    suggests this one."""
    is_ids: bool = False
    """Whether a list of one differs from its item: "0," is device 0, "1" is one device."""
    has_commas: bool = False
    """Whether one value may have commas itself, as 3,32,32: a file may have a list then."""
    complete: Collection[str] | Callable[[], Collection[str]] = ()
    """Values that shell completion offers; by default the names of a Choice."""
    none: str | None = None
    """The word for None, where that is a value of its own."""
    optional: bool = False
    """Whether results that are older than the setting hold None, which nobody can ask for."""
    argument: str | None = None
    """Name in Python calls, if it is not the first option's."""
    shown: Callable[[Any], str] | None = None
    """Text for a row's name, if the value is not the default; None or "" keeps it out of the name.

    Annotations are evaluated with the class for globals, so that a lambda there sees no name of
    its module: what needs one is a function.
    """
    apart: bool = False
    """Whether its values are different work, so that speeds are not compared across them; a row's
    name has it where the sweep has several, and only there."""
    position: int = 0
    """Position in a row's name: smaller numbers come first."""

    @property
    def option(self) -> str:
        """The option's name in messages; for a positional argument its name in help."""
        return self.options[0].partition("/")[0] if self.options else self.metavar or ""

    @property
    def name(self) -> str:
        """The parameter of commands and Python calls."""
        return self.argument or self.key.replace("-", "_")

    @property
    def key(self) -> str:
        """The name in a file of options."""
        return self.option.removeprefix("--")

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names in a file of options: both batch-sizes and batch-size."""
        long = (one.partition("/")[0] for one in self.options if one.startswith("--"))
        return tuple(one.removeprefix("--") for one in long)

    @property
    def may_be_list(self) -> bool:
        """Whether a file of options may have a list of values."""
        return self.several or self.is_ids or self.has_commas or isinstance(self.kind, RowRules)

    def parse(self, option: str, token: str) -> Any:
        """Reads one value as it is typed; raises UsageError that names the option."""
        if self.none is not None and token.strip() == self.none:
            return None
        return self.kind.parse(option, token)

    def read(self, text: Any, notes: list[str]) -> Any:
        """The value of the whole option as it is typed, a list where it takes one."""
        if not self.several:
            return self.parse(self.option, text)
        has_options = isinstance(self.kind, NameWithOptions)
        split = NOT_BEFORE_OPTION.split if has_options else at_commas
        return comma_list(self.option, text, self.parse, notes, split)

    def check(self, given: Any, notes: list[str]) -> Any:
        """The value that a Python call gives: values stay, others are read as they print."""
        if isinstance(given, (str, PathLike)) or not self.several:
            return given if self._takes(given) else self.read(self.as_typed(given), notes)
        items = given if isinstance(given, list | tuple) else [given]
        if not items or not all(map(self._takes, items)) or len({*items}) < len(items):
            return self.read(self.as_typed(items), notes)
        return tuple(items)

    def as_typed(self, value: Any) -> str | None:
        """The value of a Python call as a shell would have it; None for one that is left out."""
        if value is None or value is AUTO:
            return None
        is_list = isinstance(value, list | tuple)
        if is_list and self.none is not None:
            value = [self.none if item is None else item for item in value]
        return as_typed(value) + "," * (self.is_ids and is_list and len(value) == 1)

    def words(self, text: Any) -> tuple[str, ...]:
        """The words on the command line that mean a value as it is typed, or a flag."""
        option, _, otherwise = self.options[0].partition("/")
        if not isinstance(self.kind, Flag):
            return (option, str(text))
        return tuple(filter(None, [option if text else otherwise]))

    def _takes(self, value: object) -> bool:
        return not isinstance(value, str) and self.kind.takes(value)

    def text(self, value: Any) -> str:
        """The value as it is typed: "yes", "auto", "25", "32,64"."""
        if isinstance(value, tuple):
            return ",".join(map(self.text, value))
        if value is None:
            return self.none or ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def as_typed(value: Any) -> str:
    """A Python value as a shell would have it: (32, 64) as "32,64", True as "yes"."""
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(as_typed, value)) if isinstance(value, list | tuple | range) else str(value)


@cache
def settings_of(spec: Any) -> dict[str, Setting]:
    """The settings that the fields of a dataclass declare, by the names of the fields."""
    return {
        name: declared
        for name, hint in get_type_hints(spec, include_extras=True).items()
        for declared in getattr(hint, "__metadata__", ())
        if isinstance(declared, Setting)
    }


def options_by_field(options: Any) -> dict[str, str]:
    """The option that decides a field of a specification, as messages name it."""
    return {
        field: one.option
        for name, one in settings_of(options).items()
        for field in one.decides or (name,)
    }


def defaults_as_typed(options: Any) -> dict[str, Any]:
    """The value of each option of the command when nothing is typed."""
    declared = settings_of(options)
    return {
        field.name: default_text(declared[field.name], field.default) for field in fields(options)
    }


def from_texts(
    options: type[O],
    texts: Texts,
    notes: list[str],
    name_source: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> O:
    """Reads every option, each inside `name_source` of its name. Raises UsageError."""
    values: dict[str, Any] = {}
    declared = settings_of(options)  # type: ignore[arg-type]  # a class is hashable
    for field in fields(options):  # type: ignore[arg-type]
        text = texts[field.name]
        if text is None:
            values[field.name] = field.default
            continue
        with name_source(field.name):
            values[field.name] = declared[field.name].read(text, notes)
    return options(**values)


def from_values(options: type[O], given: Mapping[str, Any], notes: list[str]) -> O:
    """Checks the values of a Python call; None leaves an option out. Raises UsageError."""
    declared = settings_of(options)  # type: ignore[arg-type]  # a class is hashable
    return options(
        **{
            field.name: declared[field.name].check(given[field.name], notes)
            for field in fields(options)  # type: ignore[arg-type]
            if field.name in given
            and given[field.name] not in (None, AUTO)
            and given[field.name] is not field.default
        }
    )


def default_text(setting: Setting, default: Any) -> Any:
    """The default of an option as it would be typed; None where nothing typed means it."""
    if default in (None, AUTO):
        return None
    if isinstance(setting.kind, Flag) or isinstance(default, Path):
        return default
    return setting.typed_default or as_typed(default)
