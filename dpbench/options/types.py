"""Values of options that standard annotations do not have: names, lists, percentages, times, GPUs.

Nothing is coerced, clamped or dropped in silence: a wrong value is a ValueError that says what was
expected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, ValidationInfo

from dpbench.architecture import shipped_architectures
from dpbench.architecture.naming import NOT_BEFORE_OPTION, TORCHVISION, parse_name
from dpbench.errors import expected_name
from dpbench.messages import as_typed, option_words, say
from dpbench.specs.axes import AXES

T = TypeVar("T")

MAX_COUNT = 10**18
MAX_DURATION_SECONDS = 30 * 24 * 3600.0
_TIME = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-[0-9]+)?)([smh]?)")
_TIME_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}


def _plain_number(value: Any) -> Any:
    """Refuse what Python takes for a number, too: True for 1, "1_0" for 10."""
    if isinstance(value, bool) or "_" in str(value):
        raise ValueError("expected a number")
    return value


_PLAIN = BeforeValidator(_plain_number)
Count = Annotated[int, Field(ge=1, le=MAX_COUNT), _PLAIN]
"""A positive integer."""
Number = Annotated[int, Field(ge=0, le=MAX_COUNT), _PLAIN]
"""0 or a positive integer."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _PLAIN]
"""A finite number above 0."""
Megabytes = Annotated[Positive, Field(le=1e6)]
"""A size in MiB. A cap of a TB holds every gradient; torch counts it in 64-bit bytes."""


def one_of(names: Collection[str] | Mapping[str, str]) -> AfterValidator:
    """One of some names; a mapping gives several spellings of a name."""

    def find(value: str) -> str:
        name = value.strip()
        if name not in names:
            raise ValueError(expected_name(name, names))
        return names[name] if isinstance(names, Mapping) else name

    return AfterValidator(find)


def word_for_none(axis: str) -> tuple[BeforeValidator, PlainSerializer]:
    """Reads the word that stands for None on an axis of a sweep, and writes it again."""
    word = AXES[axis].none
    return (
        BeforeValidator(lambda value: None if value == word else value),
        PlainSerializer(lambda value: word if value is None else value, when_used="json"),
    )


def _percent(value: Any) -> float:
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = 0.0
    if 0 < number < 100 and text.endswith("%"):
        return number / 100
    guess = ""
    if 0 < number < 100:
        guess = f"; did you mean {number if number >= 1 else 100 * number:g}%?"
    raise ValueError(f"expected a percentage above 0 % and below 100 %, as in 3% or 99.5%{guess}")


def _duration(value: Any) -> float:
    match = _TIME.fullmatch(str(value).strip())
    seconds = float(match[1]) * _TIME_UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_DURATION_SECONDS:
        raise ValueError("expected a duration, in seconds or as 90s, 5m or 1h, at most 30 days")
    return seconds


def _ids(value: Any) -> Any:
    """The ids of GPUs in text with a comma; a number stays as it is."""
    return value.removesuffix(",").split(",") if isinstance(value, str) and "," in value else value


def _gpus_text(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return ",".join(map(str, value)) + "," * (len(value) == 1)


def _named(value: Any) -> Any:
    if not isinstance(value, str | PathLike) or not str(value):
        raise ValueError("expected the name of a file or folder; '.' is the current folder")
    return value


def _metric(name: str) -> str:
    from dpbench.analysis.metrics import COMPARED_METRICS  # slow to import

    if name not in COMPARED_METRICS:
        raise ValueError(expected_name(name, COMPARED_METRICS.keys()))
    return name


MetricKey = Annotated[str, AfterValidator(_metric)]
"""The key of a metric that can be compared."""
Percent = Annotated[
    float,
    BeforeValidator(_percent, json_schema_input_type=str),
    PlainSerializer(lambda share: f"{100 * share:.15g}%", when_used="json"),
]
"""A share, as a fraction, from text such as "3%": a bare number could mean 5 % or 500 %."""
Duration = Annotated[float, BeforeValidator(_duration, json_schema_input_type=float | str)]
"""Seconds, from 90, "90s", "5m" or "1h"."""
FilePath = Annotated[Path, BeforeValidator(_named)]
"""A file or folder."""


def _writable(path: Path) -> Path:
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError("expected the name of a file in a folder that exists")
    return path


OutputFile = Annotated[FilePath, AfterValidator(_writable)]
"""A file that is written only after a long time."""


def _code(name: Any) -> Any:
    if not isinstance(name, str) or name.startswith(("__main__:", "__mp_main__:")):
        raise ValueError(
            "ranks cannot import what was defined in a script or a notebook; expected a name in a "
            "file, as in 'my_model.py:make' or 'my_package.models:make'"
        )
    return name


def _architecture(text: str) -> str:
    name = parse_name(text)
    if name.source == "shipped" and name.origin not in (known := shipped_architectures()):
        raise ValueError(expected_name(name.origin, (*known, f"{TORCHVISION}:NAME")))
    return text


Code = Annotated[str, BeforeValidator(_code)]
"""A name that may be that of a function of the user."""
ArchitectureName = Annotated[Code, AfterValidator(_architecture)]


def split_commas(value: Any, *, comma: re.Pattern[str] = re.compile(",")) -> list[Any]:
    """The items of "a,b,c", or of a list whose texts may have commas, too; one value is a list."""
    several = [*value] if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    items = list[Any]()
    for item in several:
        if isinstance(item, str):
            items += [part.strip() for part in comma.split(item)]
        else:
            items.append(item)
    if items in ([], [""]):
        raise ValueError("expected at least one value, or leave it out")
    if "" in items:
        raise ValueError("expected no empty entry; remove the extra comma")
    return items


def _unique(values: tuple[T, ...], info: ValidationInfo) -> tuple[T, ...]:
    """Each value once, in order; says which ones are kept."""
    kept = tuple(dict.fromkeys(values))
    if len(kept) < len(values):
        say(f"{option_words(str(info.field_name))}: duplicates removed: {as_typed(kept)}")
    return kept


Gpus = Annotated[
    Count | Annotated[tuple[Number, ...], Field(min_length=1), AfterValidator(_unique)],
    BeforeValidator(_ids),
    PlainSerializer(_gpus_text, when_used="json"),
]
"""A number of GPUs, or their ids."""
CommaList = Annotated[tuple[T, ...], BeforeValidator(split_commas), AfterValidator(_unique)]
"""A list with commas between its values, or a list."""
ArchitectureList = Annotated[
    tuple[ArchitectureName, ...],
    BeforeValidator(partial(split_commas, comma=NOT_BEFORE_OPTION)),
    AfterValidator(_unique),
]
"""The same for architectures, which options may follow: mlp:width=4,layers=3."""
