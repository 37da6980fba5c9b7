"""The names of architectures and of a user's functions: where each comes from, its options, and the
user's files in a workload.

    mlp                          shipped; or mlp:width=64,layers=3
    package.module:factory       a function of an importable module
    path/to/file.py:factory      a function of a file
    torchvision:NAME             an image classifier of torchvision

Options follow one more colon: file.py:factory:depth=3. A dataset of the user's has the same
spelling, without options. The content of a file may change: trials before and after that measure
different things, and must not count as repetitions, so a specification has a hash of the files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePath
from typing import Literal

from dpbench.errors import UsageError
from dpbench.specs import WorkloadSpec

NOT_BEFORE_OPTION = re.compile(r",(?!\s*\w+\s*=)")
"""A comma between names that may have options: only the second one of mlp:width=4,depth=3,gpt."""
TORCHVISION = "torchvision"
NameSource = Literal["shipped", "torchvision", "file", "module"]
_FUNCTION = r":(?P<factory>[^:=]+)(:(?P<options>.*))?"
_USER_CODE: dict[NameSource, str] = {
    "file": rf"(?P<origin>.+?\.py){_FUNCTION}",
    "module": rf"(?P<origin>[^:/]+){_FUNCTION}",
}
_SPELLINGS: dict[NameSource, str] = {
    "shipped": r"(?P<origin>[^:./]+)(?P<factory>)(:(?P<options>[^:]*=.*))?",
    "torchvision": rf"(?P<origin>{TORCHVISION}){_FUNCTION}",
    **_USER_CODE,
}
"""The pattern of a name from each source; they are tried in this order."""


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
        return self.source in _USER_CODE

    @property
    def title(self) -> str:
        """Beginning of error messages."""
        return f"{self.what} {self.text!r}"

    @property
    def user_file(self) -> Path | None:
        """The user's file: the one that is named, or that of the module; not every module has
        one."""
        if self.source == "file":
            return Path(self.origin).resolve()
        spec = find_module(self.origin) if self.source == "module" else None
        file = Path(spec.origin) if spec is not None and spec.origin else None
        return file if file is not None and file.is_file() else None


def parse_name(text: str, what: str = "architecture") -> FunctionName:
    """The parts of the name of an architecture, or of the user's function for another `what`, which
    has no options.

    Raises UsageError.
    """
    title, is_architecture = f"{what} {text!r}", what == "architecture"
    for source, pattern in (_SPELLINGS if is_architecture else _USER_CODE).items():
        match = re.fullmatch(pattern, text)
        if match is not None and (is_architecture or not match["options"]):
            return FunctionName(
                text=text,
                source=source,
                origin=match["origin"],
                factory=match["factory"] or "Architecture",
                options=_parse_options(match["options"] or "", title),
                what=what,
            )
    function = "factory" if is_architecture else what
    expected = f"path/to/file.py:{function} or package.module:{function}"
    if is_architecture and text.endswith(".py"):
        expected = (
            f"{text}:factory, a function in the file; a training script goes last, without --arch: "
            f"dpbench explain {text}, or dpbench check --against-ref HEAD {text}"
        )
    elif is_architecture:
        expected = f"a shipped one as in mlp:width=64, torchvision:NAME, {expected}"
    raise UsageError(f"{title}: expected {expected}")


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


def find_module(name: str) -> ModuleSpec | None:
    """Look for the module; of a dotted name this imports the parents, which may fail."""
    try:
        return importlib.util.find_spec(name)
    except Exception:  # loading it reports the error
        return None


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


def user_files(workload: WorkloadSpec) -> tuple[Path, ...]:
    """The user's files: those that the workload names, and those of the modules that it names."""
    if workload.script:
        return () if workload.script[0] == "-m" else (Path(workload.script[0]),)
    names = map(parse_name, (workload.architecture, workload.dataset))
    return tuple(dict.fromkeys(file for name in names if (file := name.user_file) is not None))


def with_files(workload: WorkloadSpec) -> WorkloadSpec:
    """The workload with the hash of the user's files as they are now; None if it has none.

    Files that they import do not count. Raises UsageError for a file that cannot be read.
    """
    digest, files = hashlib.sha256(), user_files(workload)
    for path in files:
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}; expected a file") from None
    return replace(workload, files_sha256=digest.hexdigest() if files else None)


def named_files(workload: WorkloadSpec) -> str:
    """The user's files in words: "model.py or data.py"."""
    if workload.script:
        return workload.architecture
    names = map(parse_name, (workload.architecture, workload.dataset))
    user_code = [PurePath(name.origin).name for name in names if name.is_user_code]
    return " or ".join(dict.fromkeys(user_code))
