"""The spelling of an architecture: where it comes from, and its options.

    mlp                          shipped; or mlp:width=64,layers=3
    package.module:factory       a function of an importable module
    path/to/file.py:factory      a function of a file
    timm:NAME                    a model of a library; also torchvision:NAME, transformers:NAME

Options stand behind one more colon where a factory is named: file.py:factory:depth=3.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from dpbench.errors import UsageError
from dpbench.values import NOT_BEFORE_OPTION

LIBRARIES = ("timm", "torchvision", "transformers")
INPUT_SHAPE = "input_shape"
"""The option that says, where a factory returns only a model, what the model takes."""

LONGEST_FOLDER_NAME = 120
"""Longest folder name, out of the 255 bytes of file systems, since a time is put before it and a
number after it."""

Source = Literal["shipped", "module", "file", "library"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """A name that was taken apart; nothing of it was looked up yet."""

    text: str
    source: Source
    origin: str
    """The shipped name, the module, the file or the library."""
    factory: str
    """The function, or the library's model; "" for a shipped one."""
    options: dict[str, str]
    what: str = "architecture"
    """Kind of thing that is named; "step" and "dataset" of a file or a module use the same
    notation."""

    @property
    def title(self) -> str:
        """Beginning of error messages."""
        return f"{self.what} {self.text!r}"


def parse_name(text: str) -> Name:
    """Takes a name apart; raises UsageError. Looks at nothing but the text."""
    file = re.match(r"(.+?\.py)(?::|$)", text)
    if file:
        return _of_factory(text, "file", file[1], text[file.end() :])
    head, colon, rest = text.partition(":")
    if "/" in head:
        raise UsageError(f"architecture {text!r}: expected path/to/file.py:factory")
    if head in LIBRARIES:
        return _of_factory(text, "library", head, rest)
    if not colon or ("=" in rest.partition(":")[0] and "." not in head):
        options = _options(text, rest) if colon else {}
        return Name(text=text, source="shipped", origin=head, factory="", options=options)
    return _of_factory(text, "module", head, rest)


def parse_function(text: str, what: str) -> Name:
    """A function of the user's that is no architecture: "file.py:name" or "package.module:name",
    without options. Raises UsageError."""
    file = re.match(r"(.+?\.py)(?::|$)", text)
    origin, _, function = (file[1], "", text[file.end() :]) if file else text.partition(":")
    title = f"{what} {text!r}"
    if "/" in origin and not file:
        raise UsageError(f"{title}: expected path/to/file.py:{what}")
    if not function.isidentifier() or not origin:
        raise UsageError(
            f"{title}: expected path/to/file.py:{what} or package.module:{what}, the name of a "
            "function behind the colon"
        )
    source: Source = "file" if file else "module"
    return Name(text=text, source=source, origin=origin, factory=function, options={}, what=what)


def is_theirs(text: str) -> bool:
    """Whether loading it runs code that neither dpbench nor a known library brings.

    Such a name is loaded only where it was given on the command line or as an argument, never
    because a results folder says it.
    """
    return parse_name(text).source in ("module", "file")


def split_names(text: str) -> list[str]:
    """The names in a list of them: a comma begins another one, unless an option follows it."""
    return [name.strip() for name in NOT_BEFORE_OPTION.split(text)]


def make_importable(*named: str | None) -> None:
    """Lets package.module:name be of a module of the working directory, as python -m would; each
    may be a list as it is typed."""
    with suppress(UsageError):  # of a name that is none; whoever reads it says so
        theirs = any(is_theirs(one) for name in named if name for one in split_names(name))
        if theirs and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))


def folder_name(text: str) -> str:
    """The name as a part of a folder's: of a file only what it is called, without its folders."""
    name = parse_name(text)
    origin = PurePath(name.origin).stem if name.source == "file" else name.origin
    options = ",".join(f"{option}={value}" for option, value in name.options.items())
    parts = "-".join(part for part in (origin, name.factory, options) if part)
    return re.sub(r"[^\w.,=-]", "-", parts)[:LONGEST_FOLDER_NAME]


def with_input_shape(text: str, shape: str) -> str:
    """The name with the option input_shape, as it is stored: from --input-shape 3,32,32.

    Raises UsageError for a shape that is none, and for a name that does not take one.
    """
    name = parse_name(text)
    if name.source not in ("module", "file"):
        raise UsageError(
            f"--input-shape: {text!r} knows its own inputs; expected it with "
            "path/to/file.py:factory or package.module:factory"
        )
    if INPUT_SHAPE in name.options:
        raise UsageError(f"--input-shape: {text!r} says its input_shape already; give one of both")
    sizes = "x".join(str(size) for size in _sizes(shape, ",", f"--input-shape: got {shape!r}"))
    return f"{text}{',' if name.options else ':'}{INPUT_SHAPE}={sizes}"


def input_shape(name: Name) -> tuple[int, ...] | None:
    """The shape of one sample, without the dimension of the samples; None if not given."""
    text = name.options.get(INPUT_SHAPE)
    return None if text is None else _sizes(text, "x", f"{name.title}: input_shape: got {text!r}")


def _of_factory(text: str, source: Source, origin: str, rest: str) -> Name:
    factory, colon, options = rest.partition(":")
    if not origin or not factory or "=" in factory:
        expected = {
            "file": f"{origin}:factory, a function in the file",
            "library": f"{origin}:NAME, a model of the library",
        }.get(source, "NAME:option=value of a shipped one, or package.module:factory, both named")
        raise UsageError(f"architecture {text!r}: expected {expected}")
    known = _options(text, options) if colon else {}
    return Name(text=text, source=source, origin=origin, factory=factory, options=known)


def _options(text: str, spelled: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in spelled.split(","):
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not option or not equals or not value:
            raise UsageError(
                f"architecture {text!r}: got {part!r}, expected option=value, several with commas"
            )
        if option in options:
            raise UsageError(f"architecture {text!r}: option {option} is given twice")
        options[option] = value
    return options


def _sizes(text: str, separator: str, title: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{title}, expected the sizes of one sample, such as 3{separator}32")
    return tuple(map(int, parts))
