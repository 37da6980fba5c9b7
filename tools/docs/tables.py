"""Tables of the documentation that are made from the code: columns, options, members, …"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from textwrap import fill
from typing import Any

import dpbench
from dpbench.analysis.metrics import METRICS, ON_PAGES
from dpbench.api.results import Results
from dpbench.cli.app import commands
from dpbench.specs.axes import GRID
from dpbench.specs.labels import IDENTITY
from tools.docs import ROOT

GPU_RESULTS = ROOT / "results" / "gpu" / "gpu.json"
NOT_MEASURED = {*IDENTITY, "status"}
"""Columns of a table that say what was measured, not how it went."""
LONG_COMMANDS = ("sweep", "check", "train")
"""Commands whose options do not fit on a screen."""


def table(kind: str, details: str) -> str:
    """The table or text that a comment asks for; raises KeyError for one that there is not."""
    return _TABLES[kind](details)


def _columns(which: str) -> str:
    """`shown` without being asked for, or `by name`: those that are measured, or `settings`."""
    columns = [metric.counting(["images"]) for metric in METRICS if metric.importance >= ON_PAGES]
    if which == "settings":
        return f"{fill(', '.join(each.key for each in columns if each.key in GRID), 100)}\n"
    shown = {"shown": True, "by name": False}[which]
    return _markdown(
        ("column", "definition"),
        (
            (f"{f'{column.header}, ' * shown}`{column.key}`", column.meaning)
            for column in columns
            if (column.importance > ON_PAGES) is shown
            and column.key not in (NOT_MEASURED if shown else GRID)
        ),
    )


def _options(which: str) -> str:
    """Options that exactly these of `LONG_COMMANDS` have with one meaning."""
    names = which.split(", ")
    options = {name: _described_options(name) for name in LONG_COMMANDS}
    rows = []
    for meaning, option in options[names[0]].items():
        if [name for name in LONG_COMMANDS if meaning in options[name]] == names:
            defaults = {name: options[name][meaning].show_default for name in names}
            usual = defaults[names[0]]
            others = (f"; `{name}`: {one}" for name, one in defaults.items() if one != usual)
            rows.append(
                (_written(option), f"{meaning} [{usual}{''.join(others)}]" if usual else meaning)
            )
    return _markdown(("option", "meaning [default]"), rows)


def _described_options(command_name: str) -> dict[str, Any]:
    """The options of a command by their meaning."""
    options = commands().commands[command_name].params
    return {_flowing(one.help): one for one in options if one.name != "help" and not one.hidden}


def _written(option: Any) -> str:
    """Its first long name and its short one, with what it takes."""
    if option.param_type_name == "argument":
        return f"`{option.metavar}`"
    long, *_ = (name for name in option.opts if name.startswith("--"))
    short = (name for name in option.opts if not name.startswith("--"))
    names = ", ".join(f"`{name}`" for name in (long, *short, *option.secondary_opts))
    return f"{names} `{option.metavar}`" if option.metavar and not option.is_flag else names


def _flowing(help_text: str | None) -> str:
    """The first paragraph, as one line; examples of use come after it."""
    return " ".join((help_text or "").split("\n\n")[0].split())


def _gpu(_: str) -> str:
    """Speeds of ddp and torch-ddp that `make gpu` has measured; empty before it was run."""
    if not GPU_RESULTS.exists():
        return ""
    found = json.loads(GPU_RESULTS.read_text())
    gpus = found[0]["gpus"]
    return _markdown(
        (f"{len(gpus)} × {gpus[0]}", "torch-ddp", "ddp", "time of ddp ÷ torch-ddp"),
        (
            (
                f"{part['model']}, {row['configuration']}",
                f"{row['baseline']:,.0f} {row['unit']}",
                f"{row['candidate']:,.0f} {row['unit']}",
                "{slowdown:.3f} ({slowdown_low:.3f}–{slowdown_high:.3f})".format(**row),
            )
            for part in found
            for row in part["compared"]
        ),
    )


def _members(name: str) -> str:
    """The public attributes and methods of a class, with the first sentence of each."""
    rows = []
    for key, member in vars(Results if name == "Results" else getattr(dpbench, name)).items():
        value = member.__func__ if isinstance(member, classmethod) else member
        said = inspect.getdoc(value)
        if key.startswith("_") or not (callable(value) or said):
            continue
        if callable(value):
            given = [*inspect.signature(value).parameters][1:]  # without self
            key = f"{key}({', '.join(given)})"
        rows.append((f"`{key}`", re.split(r"(?<=[.])\s(?=[A-Z])", _flowing(said))[0]))
    return _markdown(("member", "what it is"), rows)


def _markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = "|---" * len(headers) + "|"
    lines = (f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows)
    return "".join(f"{line}\n" for line in (f"| {' | '.join(headers)} |", rule, *lines))


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")


_TABLES: dict[str, Callable[[str], str]] = {
    "columns": _columns,
    "options": _options,
    "gpu": _gpu,
    "members": _members,
}
