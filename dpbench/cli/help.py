"""Help in plain text: a heading for each panel and one name for each option."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from dpbench.options.model import Panel

NAME_COLUMNS = 22
"""Columns for the names of options; a longer name has a line of its own."""

DESCRIBE_ALL = "--help-all"
MANY_ROWS = 24
"""Rows of help above which --help only names most options."""
MAIN_HEADINGS = (Panel.ARGUMENTS, Panel.OPTIONS)
"""Headings whose options it describes even then."""
MORE_COMMANDS = "More commands"
"""The heading of commands that the first screen of help only names."""

HelpRows = list[tuple[str, str]]


def write_options(ctx: Any, formatter: Any, options: Sequence[Any]) -> None:
    """Describe the options of a command by heading; --help only names most of many."""
    rows = _rows_by_heading(options)
    if ctx.meta[DESCRIBE_ALL] or sum(map(len, rows.values())) <= MANY_ROWS:
        _write(formatter, rows)
        return
    _write(formatter, {title: rows.pop(title) for title in MAIN_HEADINGS if title in rows})
    with formatter.section("More options"):
        indent = " " * formatter.current_indent
        for title, others in rows.items():
            names = (re.findall("--[a-z-]+", name)[0] for name, _ in others)
            text = f"{indent}{title}: {' '.join(names)}"
            for line in wrap(
                text, formatter.width, subsequent_indent=2 * indent, break_on_hyphens=False
            ):
                formatter.write(f"{line}\n")
    formatter.write_paragraph()
    formatter.write_text(f"{ctx.command_path} {DESCRIBE_ALL} describes all options.")


def write_commands(ctx: Any, formatter: Any, commands: Mapping[str, Any], options: Any) -> None:
    """Describe the usual commands and name the others, or describe all; and the options."""
    rows: dict[str, HelpRows] = {}
    for name, command in commands.items():
        row = (name, command.get_short_help_str(limit=formatter.width))
        rows.setdefault(command.rich_help_panel, []).append(row)
    describes_all = ctx.meta[DESCRIBE_ALL]
    others = [] if describes_all else [name for name, _ in rows.pop(MORE_COMMANDS)]
    _write(formatter, rows)
    if others:
        formatter.write_paragraph()
        names = f"{MORE_COMMANDS}: {', '.join(others)}."
        formatter.write_text(f"{names} {ctx.command_path} {DESCRIBE_ALL} describes them.")
    _write(formatter, _rows_by_heading(options))


def _rows_by_heading(options: Sequence[Any]) -> dict[str, HelpRows]:
    rows: dict[str, HelpRows] = {panel: [] for panel in Panel}
    for option in (option for option in options if not option.hidden):
        is_argument = option.param_type_name == "argument"
        usual = option.show_default
        text = f"{option.help}{f' [default: {usual}]' if isinstance(usual, str) else ''}"
        # Those of typer itself, such as --help, have no heading.
        heading = option.rich_help_panel or Panel.OPTIONS
        rows[heading].append((option.metavar if is_argument else _name(option), text))
    return {heading: found for heading, found in rows.items() if found}


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
