"""Help as plain text, and errors that name the remedy, the same for every command.

typer's own help wants a wide terminal and shows every option at once. Here a command with many
options shows those that its declarations mark as common; `--help-all` shows the rest.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from dpbench.errors import UsageError
from dpbench.report.progress.terminal import WIDTH, table_width
from dpbench.specs.settings import Setting, settings_of

MOST_OPTIONS = 20
"""A command that has more shows the common ones only."""
WIDEST_NAMES = 28
"""Columns of the names of options; the help of a longer one begins on the next line."""
OPTIONS = "Options"
DEFAULT = "[default: "
GLUE = "\0"
"""A blank at which no line is broken."""
EXAMPLE = "dpbench "
"""How a paragraph of a docstring begins that is an example."""


class Command(TyperCommand):
    """A command whose help and errors are ours."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's options, --help, and --help-all if --help leaves some out."""
        params: list[Any] = super().get_params(ctx)
        help_option = params[-1]
        if help_option.name != "help":
            return params
        help_option = copy(help_option)
        help_option.help = "Show this help and exit."
        if not self._is_long():
            return [*params[:-1], help_option]
        help_option.help = "Show the common options and exit."
        everything = copy(help_option)
        everything.name, everything.opts = "help_all", ["--help-all"]
        everything.help = "Show all options and exit."
        everything.callback = self._show_everything
        return [*params[:-1], help_option, everything]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if remedy := self._remedy(error, typed):
                raise UsageError(f"{remedy} See {ctx.command_path} --help.") from None
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(self._help(ctx, everything=False))

    @property
    def settings(self) -> dict[str, Setting]:
        """Settings declared by the command's options, by name; none if typer's own declare them."""
        options = getattr(self.callback, "options", None)
        return {} if options is None else settings_of(options)

    def _is_long(self) -> bool:
        shown = [param for param in self.params if not getattr(param, "hidden", False)]
        return len(shown) > MOST_OPTIONS and any(one.common for one in self.settings.values())

    def _show_everything(self, ctx: Any, _: Any, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            typer.echo(self._help(ctx, everything=True).rstrip("\n"), color=ctx.color)
            ctx.exit()

    def _help(self, ctx: Any, *, everything: bool) -> str:
        paragraphs = (self.help or "").split("\n\n")
        examples = [one.strip() for one in paragraphs if one.strip().startswith(EXAMPLE)]
        summary, *notes = [one for one in paragraphs if not one.strip().startswith(EXAMPLE)]
        parts = [filled(summary), ctx.get_usage()]
        if examples:
            parts.append("\n".join([heading("Examples"), *(f"  {one}" for one in examples)]))
        parts += self._panels(ctx, everything=everything)
        parts += map(filled, notes)
        if self._is_long() and not everything:
            count = sum(not getattr(param, "hidden", False) for param in self.params)
            parts.append(f"All {count} options: {ctx.command_path} --help-all")
        return "\n\n".join(parts) + "\n"

    def _panels(self, ctx: Any, *, everything: bool) -> Iterator[str]:
        declared = self.settings
        is_short = self._is_long() and not everything
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            if getattr(param, "hidden", False):
                continue
            setting = declared.get(param.name)
            if param.param_type_name == "argument":
                panel = "Arguments"
            elif is_short and setting is not None and not setting.common:
                continue
            else:
                panel = (None if is_short else param.rich_help_panel) or OPTIONS
            panels.setdefault(panel, []).append((_names(param), _with_default(param)))
        shown = {name: rows for name, rows in panels.items() if rows}
        width = max(narrow(names for names, _ in rows) for rows in shown.values())
        for name, rows in shown.items():
            yield "\n".join([heading(name), *two_columns(rows, width)])

    def _remedy(self, error: Any, typed: Sequence[str]) -> str | None:
        """What to type instead of an option of other programs; None if nothing is known."""
        settings = self.settings.values()
        if hasattr(error, "possibilities") and hasattr(error, "option_name"):
            unknown = error.option_name
            for setting in settings:
                if unknown in setting.elsewhere.split():
                    return f"No such option: {unknown}. Did you mean {setting.option}?"
        elif "unexpected extra argument" in str(getattr(error, "message", "")):
            for setting in settings:
                if setting.several and (values := _spread(typed, setting.options)):
                    separate, together = " ".join(values), ",".join(values)
                    return (
                        f"{setting.option} {separate}: several values are one word with commas, "
                        f"as in {setting.option} {together}."
                    )
        return None


class Commands(TyperGroup):
    """All commands, in groups."""

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Names of commands in other programs, with their names here."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(self._help(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        meant = self.elsewhere.get(args[0])
        if meant is not None and self.get_command(ctx, args[0]) is None:
            raise UsageError(
                f"No such command '{args[0]}'. Did you mean '{meant}'? See {ctx.command_path} "
                "--help."
            )
        return super().resolve_command(ctx, args)

    def _help(self, ctx: Any) -> str:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            panels.setdefault(panel, []).append((name, _first_line(command.help)))
        params: list[Any] = self.get_params(ctx)
        options = [(_names(param), param.help or "") for param in params]
        width = max(map(len, self.commands))
        parts = [filled(self.help or ""), f"Usage: {ctx.command_path} COMMAND [OPTIONS]"]
        parts += [
            "\n".join([heading(name), *two_columns(rows, width)]) for name, rows in panels.items()
        ]
        width = narrow(names for names, _ in options)
        parts.append("\n".join([heading(OPTIONS), *two_columns(options, width)]))
        parts.append(f"Options of a command: {ctx.command_path} COMMAND --help")
        return "\n\n".join(parts) + "\n"


def _first_line(help_text: str | None) -> str:
    return " ".join((help_text or "").split("\n\n")[0].split())


def _spread(typed: Sequence[str], options: Sequence[str]) -> list[str]:
    """Two or more values behind an option, as in --batch-size 32 64; none if there are fewer."""
    for place, word in enumerate(typed):
        if word in options:
            values = []
            for value in typed[place + 1 :]:
                if value.startswith("-"):
                    break
                values.append(value.strip(","))
            if len(values) > 1:
                return values
    return []


def _names(param: Any) -> str:
    """The first spelling, the short one before it, and what stands for the value."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    long = next((name for name in param.opts if name.startswith("--")), param.opts[0])
    short = "".join(f"{name}, " for name in param.opts if not name.startswith("--"))
    off = f"/{param.secondary_opts[0]}" if param.secondary_opts else ""
    no_value = param.is_flag or param.count or not param.metavar
    return f"{short}{long}{off}{'' if no_value else f' {param.metavar}'}"


def _with_default(param: Any) -> str:
    default = getattr(param, "show_default", None)
    if not isinstance(default, str):
        value = param.default
        hidden = param.show_default is False or callable(value) or value in (None, "", (), [])
        if hidden or (isinstance(value, bool) and not param.secondary_opts):
            return str(param.help or "")
        default = str(value)
        if isinstance(value, bool):
            default = (param.opts if value else param.secondary_opts)[0].removeprefix("--")
    return f"{param.help or ''} {DEFAULT}{default}]".strip()


def heading(text: str) -> str:
    """The title of a block, bold on a terminal."""
    return f"{typer.style(text, bold=True) if _may_style() else text}:"


def _may_style() -> bool:
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and sys.stdout.isatty()


def _width() -> int:
    return min(table_width(), WIDTH)


def filled(text: str) -> str:
    """A paragraph in lines that fit."""
    return textwrap.fill(" ".join(text.split()), _width(), break_on_hyphens=False)


def narrow(names: Iterable[str]) -> int:
    """The columns that names take, of those that are not too long."""
    return max((len(name) for name in names if len(name) <= WIDEST_NAMES), default=0)


def two_columns(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Each name with its help beside it, or below it where the name is too long."""
    indent = " " * (width + 4)
    room = max(_width() - len(indent), 20)
    for name, text in rows:
        glued = text.replace(DEFAULT, DEFAULT.replace(" ", GLUE))
        lines = textwrap.wrap(glued, room, break_on_hyphens=False) or [""]
        lines = [line.replace(GLUE, " ") for line in lines]
        marked = typer.style(name, fg="cyan") if _may_style() else name
        if len(name) <= width:
            yield f"  {marked}{' ' * (width - len(name))}  {lines[0]}".rstrip()
            lines = lines[1:]
        else:
            yield f"  {marked}"
        yield from (f"{indent}{line}" for line in lines if line)
