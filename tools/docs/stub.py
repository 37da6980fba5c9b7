"""The stub of `dpbench`, from which editors know its names and their arguments.

The package itself imports a name when it is used, and the options of a call stand in its model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import indent
from typing import Any

import dpbench
from dpbench.api.calls import argument_types
from dpbench.options.check import CheckOptions
from dpbench.options.explain import ExplainOptions
from dpbench.options.model import Options
from dpbench.options.sweep import SweepOptions
from dpbench.options.train import TrainOptions
from tools.docs import ROOT

STUB = ROOT / "dpbench" / "__init__.pyi"
HEAD = """# Made by `make docs`.
# ruff: noqa
# fmt: off
from collections.abc import Sequence
from os import PathLike
"""
CALLS: dict[str, type[Options]] = {
    "check": CheckOptions,
    "explain": ExplainOptions,
    "sweep": SweepOptions,
    "train": TrainOptions,
}
"""Functions whose options stand in a model."""


def stub() -> str:
    """The content of `STUB`."""
    lines = [HEAD, "__version__: str"]
    for name in sorted({*dir(dpbench)} - {"__version__", *CALLS}):
        lines.append(f"from {getattr(dpbench, name).__module__} import {name} as {name}")
    return "\n".join(
        [*lines, "", *(_declared(getattr(dpbench, name), CALLS[name]) for name in CALLS)]
    )


def _declared(function: Callable[..., Any], model: type[Options]) -> str:
    """A function with one parameter a line, and its docstring."""
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()  # without **options
    types = {parameter.name: str(parameter.annotation) for parameter in own}
    for name, kinds in argument_types(model).items():
        types.setdefault(name, f"{kinds} | None")
    lines = [f"{name}: {annotation} = ...," for name, annotation in types.items()]
    lines.insert(sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in own), "*,")
    body = indent(f'"""{inspect.getdoc(function)}"""', "    ")
    head = indent("\n".join(lines), "    ")
    return f"def {function.__name__}(\n{head}\n) -> {signature.return_annotation}:\n{body}\n"
