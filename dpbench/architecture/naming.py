"""The names of architectures and of a user's functions: where each comes from, and its options.

    mlp                          shipped; or mlp:width=64,layers=3
    package.module:factory       a function of an importable module
    path/to/file.py:factory      a function of a file
    torchvision:NAME             an image classifier of torchvision

Options follow one more colon: file.py:factory:depth=3. A dataset of the user's has the same
spelling, without options.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpbench.errors import UsageError

NOT_BEFORE_OPTION = re.compile(r",(?!\s*\w+\s*=)")
"""A comma between names that may have options: only the second one of mlp:width=4,depth=3,gpt."""
TORCHVISION = "torchvision"
NameSource = Literal["shipped", "module", "file", "torchvision"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionName:
    """The name of the function that makes an architecture or a dataset, in its parts; nothing of it
    has been looked up yet."""

    text: str
    source: NameSource
    origin: str
    """The shipped name, the module, the file or "torchvision"."""
    factory: str
    """The function, or the model of torchvision."""
    options: dict[str, str]
    what: str = "architecture"
    """Kind of thing that is named: "architecture" or "dataset"."""

    @property
    def is_user_code(self) -> bool:
        """Whether loading it runs the user's code."""
        return self.source in ("module", "file")

    @property
    def title(self) -> str:
        """Beginning of error messages."""
        return f"{self.what} {self.text!r}"


def parse_name(text: str, what: str = "architecture") -> FunctionName:
    """The parts of the name of an architecture, or of the user's function for another `what`, which
    has no options.

    Raises UsageError.
    """
    title, is_architecture = f"{what} {text!r}", what == "architecture"
    file = re.match(r"(.+?\.py)(?::|$)", text)
    origin, _, rest = (file[1], "", text[file.end() :]) if file else text.partition(":")
    factory, _, options = rest.partition(":")
    source: NameSource = "file" if file else "module"
    if is_architecture and origin == TORCHVISION:
        source = "torchvision"
    elif is_architecture and (
        (origin == text and not file) or ("=" in factory and "." not in origin)
    ):
        source, factory, options = "shipped", "Architecture", rest
    is_whole = origin and factory and "=" not in factory and (is_architecture or not options)
    if not is_whole or (source != "file" and "/" in origin):
        function = "factory" if is_architecture else what
        expected = f"path/to/file.py:{function} or package.module:{function}"
        if is_architecture:
            expected = f"a shipped one as in mlp:width=64, torchvision:NAME, {expected}"
        if file and is_architecture and origin == text:
            expected = (
                f"{origin}:factory, a function in the file; a training script goes last, without "
                f"--arch: dpbench explain {origin}, or dpbench check --against-ref HEAD {origin}"
            )
        raise UsageError(f"{title}: expected {expected}")
    return FunctionName(
        text=text,
        source=source,
        origin=origin,
        factory=factory,
        options=_parse_options(options, title),
        what=what,
    )


def _parse_options(text: str, title: str) -> dict[str, str]:
    """The values in "width=64,layers=3" by their options. Raises UsageError."""
    values: dict[str, str] = {}
    for part in text.split(",") if text else ():
        option, _, value = (piece.strip() for piece in part.partition("="))
        if not option or not value:
            raise UsageError(f"{title}: got {part!r}, expected option=value, several with commas")
        if option in values:
            raise UsageError(f"{title}: option {option} is given twice")
        values[option] = value
    return values


def is_user_code(text: str) -> bool:
    """Whether loading it runs the user's code.

    Such a name is loaded only if it was given on the command line or as an argument, never because
    a results folder names it.
    """
    return parse_name(text).is_user_code


def make_importable(*names: str | None) -> None:
    """Add the working directory to the import path if one of the names needs it, as python -m
    does."""
    with suppress(UsageError):  # a wrong name is reported when it is loaded
        runs_user_code = any(is_user_code(name) for name in names if name)
        if runs_user_code and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
