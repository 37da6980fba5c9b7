"""Help in plain text: a heading for each panel and one name for each option."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDEST = 22
"""Columns for the names of options; a longer name has a line of its own."""

Rows = list[tuple[str, str]]


class Command(TyperCommand):
    """A command whose help shows options by panel, and examples as they are to be typed."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text = inspect.cleandoc(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():  # after \b a paragraph is not wrapped
            formatter.write_text(text.replace("\n\ndpbench ", "\n\n\b\ndpbench "))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write(formatter, _options_by_panel(self.get_params(ctx)))


class Group(TyperGroup):
    """The group of all commands, whose help shows them by panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        found: dict[str, Rows] = {}
        for name, command in self.commands.items():
            row = (name, command.get_short_help_str(limit=formatter.width))
            found.setdefault(str(command.rich_help_panel), []).append(row)  # type: ignore[attr-defined]
        _write(formatter, found)
        _write(formatter, _options_by_panel(self.get_params(ctx)))


def _options_by_panel(options: Sequence[Any]) -> dict[str, Rows]:
    arguments = [one for one in options if one.param_type_name == "argument"]
    found = {"Arguments": [(one.metavar, _text(one)) for one in arguments]} if arguments else {}
    for option in options:
        if option not in arguments and not option.hidden:
            panel = getattr(option, "rich_help_panel", None) or "Options"
            found.setdefault(panel, []).append((_name(option), _text(option)))
    return found


def _name(option: Any) -> str:
    """`-f, --config FILE`: the first long name stands for its aliases."""
    longs = [name for name in option.opts if name.startswith("--")]
    shorts = [name for name in option.opts if name not in longs]
    names = ", ".join((*shorts, "/".join((*longs[:1], *option.secondary_opts))))
    return names if option.is_flag or option.count else f"{names} {option.metavar}"


def _text(option: Any) -> str:
    shown = option.show_default
    if shown is True and option.default not in (None, False):
        shown = option.default
    return f"{option.help} [default: {shown}]" if shown not in (True, False, None) else option.help


def _write(formatter: Any, panels: Mapping[str, Rows]) -> None:
    widest = min(WIDEST, max(len(name) for rows in panels.values() for name, _ in rows))
    for title, rows in panels.items():
        with formatter.section(title):
            formatter.write_dl([(f"{name:<{widest}}", text) for name, text in rows], WIDEST)
