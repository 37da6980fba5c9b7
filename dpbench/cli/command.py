"""Commands of typer that are made from models of options, and how they read a command line."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dpbench.cli.help import DESCRIBE_ALL, write_commands, write_options
from dpbench.messages import as_typed, print_result, say
from dpbench.options.model import Options, Subject, options_of
from dpbench.options.reading import AnyOptions, read_options
from dpbench.options.shared import Measuring, is_script

if TYPE_CHECKING:
    from dpbench.report.answer import Answer

MISSPELLED = 0.9
"""How like an option a word after a script is that was probably meant for dpbench, from 0 to 1."""
WORD = re.compile(r"\w+(?:-\w+)*")


def command(
    model: type[AnyOptions],
) -> Callable[[Callable[[AnyOptions], Answer | str | None]], Callable[..., Any]]:
    """Give `function(options)` the signature that typer makes a command from, print the Answer or
    text that it returns, and return the exit status."""

    def decorate(function: Callable[[AnyOptions], Answer | str | None]) -> Callable[..., Any]:
        def run(**typed: Any) -> int:
            given = {name: value for name, value in typed.items() if value is not None}
            options = read_options(model, given)
            if (
                isinstance(options, Measuring)
                and options.subject in Subject.MEASURED
                and not options.quiet
                and sys.stderr.isatty()
            ):
                say("preparing …")  # importing torch takes seconds
            result = function(options)
            if result is None or isinstance(result, str):
                print_result(result or "")
                return 0
            print_result(result.render(as_json=getattr(options, "as_json", False)))
            return result.exit_status

        run.__name__ = function.__name__
        # A paragraph after \b is not wrapped: examples stay as they are to be typed.
        text = inspect.getdoc(function) or ""
        run.__doc__ = text.replace("\n\ndpbench ", "\n\n\b\ndpbench ")
        run.options = options_of(model)  # type: ignore[attr-defined]
        texts = model.model_construct().model_dump(mode="json")
        parameters = [_parameter(model, name, texts.get(name)) for name in options_of(model)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(model: type[Options], name: str, default: Any) -> inspect.Parameter:
    """An option as typer reads it from the signature of a command; `default` is as it is typed."""
    info = options_of(model)[name]
    is_required = model.model_fields[name].is_required()
    is_flag = info.metavar is None
    kind: Any = list[str] if info.repeated else bool if is_flag else str
    first = f"{info.name}/--no{info.name[1:]}" if is_flag and default else info.name
    usual = ("on" if default else None) if is_flag else default
    declaration = (typer.Argument if info.argument else typer.Option)(
        *(() if info.argument else (first, *info.names[1:])),
        metavar=info.metavar,
        help=info.help,
        rich_help_panel=info.panel,
        hidden=not info.panel,
        show_default=info.usual or (False if usual in (None, []) else as_typed(usual)),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else None,
        annotation=Annotated[kind if is_required else kind | None, declaration],
    )


class Command(TyperCommand):
    """A command whose first argument may be a training script: options before the script are the
    command's, and what follows it is the script's, "--" and --help too."""

    callback: Any
    allow_extra_args = True  # to refuse them in our own words

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        script, after = self._find_script(ctx, args)
        if script is not None and (misplaced := self._misplaced(script, after)):
            words = f"{', '.join(misplaced)} after {script}"
            say(f"{words}: for the script; options of dpbench stand before it")
        ctx.allow_interspersed_args = script is None
        extra = super().parse_args(ctx, args)
        if extra:
            hint = f"; dpbench explain {extra[0]} measures a training script as it is"
            ctx.fail(f"unexpected argument {extra[0]}{hint if extra[0].endswith('.py') else ''}")
        if script is None and (extra := ctx.params.get("arguments") or []):
            ctx.fail(f"unexpected argument {extra[0]}; only a script has arguments")
        return extra

    def _find_script(self, ctx: Any, args: list[str]) -> tuple[str | None, list[str]]:
        """The training script or module that is named, None without one, and the words after it."""
        names = [name for name, info in self.callback.options.items() if info.argument]
        if "arguments" in names:
            ctx.allow_interspersed_args = False
            with suppress(typer.TyperException):  # the second parser raises it again
                values, _, _ = self.make_parser(ctx).parse_args(args=[*args])
                named = str(values.get(names[0]) or "")
                if is_script(named, is_module=bool(values.get("module"))):
                    return named, [*(values.get("arguments") or ())]
        return None, []

    def _misplaced(self, script: str, words: list[str]) -> list[str]:
        """The options of dpbench, or nearly, among the words after a script that its text does not
        have."""
        path = Path(script)
        text = path.read_text(errors="replace") if path.is_file() else ""
        own = {word.replace("-", "_") for word in WORD.findall(text)}
        names = {name for info in self.callback.options.values() for name in info.names}
        first = takewhile(lambda word: word != "--", words)
        typed = (word.partition("=")[0] for word in first if word.startswith("--"))
        return [
            name
            for name in dict.fromkeys(typed)
            if get_close_matches(name.replace("_", "-"), names, n=1, cutoff=MISSPELLED)
            and name[2:].replace("-", "_") not in own
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_options(ctx, formatter, self.get_params(ctx))


class Verbatim(TyperCommand):
    """Arguments reach it as they are, "--" and --help too: torchrun's own parser reads them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


class CommandGroup(TyperGroup):
    """The group of all commands, whose help describes the usual ones and names the others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[DESCRIBE_ALL] = DESCRIBE_ALL in args
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_commands(ctx, formatter, self.commands, self.get_params(ctx))
