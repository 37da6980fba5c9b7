"""The stub of `dpbench`, from which editors know its names and their arguments.

The package itself imports a name when it is used, and the options of a call stand in its model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import indent
from typing import Any

import dpbench
from tools.docs import ROOT

STUB = ROOT / "dpbench" / "__init__.pyi"
HEAD = """# Made by `make docs`.
# ruff: noqa
# fmt: off
from collections.abc import Sequence
from os import PathLike

from dpbench.api.results import Results
from dpbench.report.answer import Answer
"""
CALLS = ("check", "explain", "sweep", "train")
"""Functions whose options stand in a model."""


def stub() -> str:
    """The content of `STUB`."""
    lines = [HEAD, "__version__: str"]
    for name in sorted({*dir(dpbench)} - {"__version__", *CALLS}):
        lines.append(f"from {getattr(dpbench, name).__module__} import {name} as {name}")
    return "\n".join([*lines, "", *(_declared(getattr(dpbench, name)) for name in CALLS)])


def _declared(function: Callable[..., Any]) -> str:
    """A function with one parameter a line, and its docstring."""
    signature, lines = inspect.signature(function), list[str]()
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*," not in lines:
            lines.append("*,")
        lines.append(f"{parameter.name}: {parameter.annotation} = ...,")
    body = indent(f'"""{inspect.getdoc(function)}"""', "    ")
    head = indent("\n".join(lines), "    ")
    return f"def {function.__name__}(\n{head}\n) -> {signature.return_annotation}:\n{body}\n"
