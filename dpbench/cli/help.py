"""Help in plain text: a heading for each panel and one name for each option."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from typer.core import TyperCommand, TyperGroup

from dpbench.options.model import Panel

NAME_COLUMNS = 22
"""Columns for the names of options; a longer name has a line of its own."""

DESCRIBE_ALL = "--help-all"
MANY_ROWS = 24
"""Rows of help above which --help only names most options."""
MAIN_PANELS = (Panel.ARGUMENTS, Panel.OPTIONS)
"""Panels that it describes even then."""
MORE_COMMANDS = "More commands"
"""The panel of commands that the first screen of help only names."""

HelpRows = list[tuple[str, str]]


class Command(TyperCommand):
    """A command whose help shows options by panel, and examples as they are to be typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[DESCRIBE_ALL] = DESCRIBE_ALL in args
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text = inspect.cleandoc(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():  # after \b a paragraph is not wrapped
            formatter.write_text(text.replace("\n\ndpbench ", "\n\n\b\ndpbench "))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels = _options_by_panel(self.get_params(ctx))
        if ctx.meta[DESCRIBE_ALL] or sum(map(len, panels.values())) <= MANY_ROWS:
            _write(formatter, panels)
            return
        _write(formatter, {title: panels.pop(title) for title in MAIN_PANELS if title in panels})
        with formatter.section("More options"):
            indent = " " * formatter.current_indent
            for title, rows in panels.items():
                names = (re.findall("--[a-z-]+", name)[0] for name, _ in rows)
                text = f"{indent}{title}: {' '.join(names)}"
                for line in wrap(
                    text, formatter.width, subsequent_indent=2 * indent, break_on_hyphens=False
                ):
                    formatter.write(f"{line}\n")
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} {DESCRIBE_ALL} describes all options.")


class CommandGroup(TyperGroup):
    """The group of all commands, whose help describes the usual ones and names the others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[DESCRIBE_ALL] = DESCRIBE_ALL in args
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, HelpRows] = {}
        for name, command in self.commands.items():
            row = (name, command.get_short_help_str(limit=formatter.width))
            rows.setdefault(str(command.rich_help_panel), []).append(row)  # type: ignore[attr-defined]
        others = [] if ctx.meta[DESCRIBE_ALL] else [name for name, _ in rows.pop(MORE_COMMANDS)]
        _write(formatter, rows)
        if others:
            formatter.write_paragraph()
            names = f"{MORE_COMMANDS}: {', '.join(others)}."
            formatter.write_text(f"{names} {ctx.command_path} {DESCRIBE_ALL} describes them.")
        _write(formatter, _options_by_panel(self.get_params(ctx)))


def _options_by_panel(options: Sequence[Any]) -> dict[str, HelpRows]:
    rows: dict[str, HelpRows] = {}
    for option in options:
        is_argument = option.param_type_name == "argument"
        panel = getattr(option, "rich_help_panel", None) or Panel.OPTIONS
        if not option.hidden:
            name = option.metavar if is_argument else _name(option)
            place = Panel.ARGUMENTS if is_argument else panel
            default = option.show_default
            usual = f" [default: {default}]" if isinstance(default, str) else ""
            rows.setdefault(place, []).append((name, f"{option.help}{usual}"))
    return {panel: rows[panel] for panel in Panel if panel in rows}


def _name(option: Any) -> str:
    """`-f, --config FILE`: the first long name stands for its aliases."""
    longs = [name for name in option.opts if name.startswith("--") and name != DESCRIBE_ALL]
    shorts = [name for name in option.opts if not name.startswith("--")]
    names = ", ".join((*shorts, "/".join((*longs[:1], *option.secondary_opts))))
    return names if option.is_flag or option.count else f"{names} {option.metavar}"


def _write(formatter: Any, panels: Mapping[str, HelpRows]) -> None:
    width = min(NAME_COLUMNS, max(len(name) for rows in panels.values() for name, _ in rows))
    for title, rows in panels.items():
        with formatter.section(title):
            formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows], NAME_COLUMNS)
