"""What calls from a Python program need: one at a time, options in their signature, and a script
that ranks do not import again."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from signal import SIGINT
from typing import Any, TypeVar

from dpbench.errors import Interrupted, UsageError
from dpbench.messages import said_to, to_stderr
from dpbench.options.model import Options, Subject, options_of
from dpbench.options.reading import AnyOptions, read_options

F = TypeVar("F", bound=Callable[..., Any])
PYTHON_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}
"""Types of Python by those of JSON; null leaves an option out."""
_measuring = threading.Lock()


@contextmanager
def python_call(
    name: str, model: type[AnyOptions], given: Mapping[str, Any], *, progress: bool
) -> Iterator[AnyOptions]:
    """The block of one call, with its options: messages are on stderr if `progress`, Ctrl-C says
    how to go on, and only one call measures or trains at a time."""
    try:
        with said_to(to_stderr if progress else lambda message: None):
            options = read_options(model, given, name)
            with nullcontext() if options.subject is Subject.RESULTS else measuring(name):
                yield options
    except Interrupted as error:
        if error.signal_number != SIGINT:
            raise
        raise KeyboardInterrupt(str(error)) from None


@contextmanager
def measuring(name: str) -> Iterator[None]:
    """The part of a call that measures or trains. Raises UsageError if another call is in it.

    Ranks keep the environment variables of the first call, which starts the server of ranks.
    """
    if not _measuring.acquire(blocking=False):
        raise UsageError(
            f"{name}: another call of this process is measuring or training; wait for its end. A "
            "script that is imported for its architecture puts its call under "
            '`if __name__ == "__main__":`'
        )
    # multiprocessing would import the caller's script again in every rank, to find in it what was
    # pickled: without `if __name__ == "__main__"` that is the sweep once more. Ranks need nothing
    # of it, and it is found by these two names.
    names = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {key: names[key] for key in ("__spec__", "__file__") if key in names}
    names.pop("__file__", None)
    names["__spec__"] = None
    try:
        yield
    finally:
        names.update(hidden)
        _measuring.release()


def as_path(place: Any) -> Any:
    """The path of a folder that is given as a path or as its `Results`; anything else as it is."""
    place = getattr(place, "folder", place)
    return os.fspath(place) if isinstance(place, os.PathLike) else place


def takes_options(model: type[Options]) -> Callable[[F], F]:
    """List the options of a model in the docstring of a call, except its own parameters."""

    def decorate(function: F) -> F:
        own = inspect.signature(function).parameters
        lines = [
            f"    {name} ({types}): {options_of(model)[name].help}"
            for name, types in argument_types(model).items()
            if name not in own
        ]
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
        return function

    return decorate


def argument_types(model: type[Options]) -> dict[str, str]:
    """What each option accepts as an argument of a call, by field; None leaves it out."""
    schemas = model.model_json_schema()["properties"]
    return {
        name: " | ".join(dict.fromkeys(_accepted(schemas[name])))
        for name, info in options_of(model).items()
        if not info.printed
    }


def _accepted(schema: Mapping[str, Any]) -> list[str]:
    """The types of Python that a JSON schema stands for; a list may be a single value, too."""
    if "anyOf" in schema:
        return [kind for option in schema["anyOf"] for kind in _accepted(option)]
    if schema["type"] == "array":
        item = " | ".join(_accepted(schema["items"]))
        return [item, f"Sequence[{item}]"]
    if schema.get("format") == "path":
        return ["str", "PathLike[str]"]
    return [PYTHON_TYPES[schema["type"]]] if schema["type"] in PYTHON_TYPES else []
