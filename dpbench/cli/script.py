"""A command whose first argument may be a training script: what follows is the script's own."""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile
from typing import Any

from dpbench.cli.help import Command
from dpbench.options.shared import is_script


class ScriptCommand(Command):
    """Options before the script are the command's, everything after it the script's, "--" and
    --help too; an option that only dpbench can mean is refused there, unless "--" stands before
    the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = [*args]
        named, is_module = self._first_word(ctx, typed)
        names_script = is_script(named, is_module=is_module)
        ctx.allow_interspersed_args = not names_script
        left = super().parse_args(ctx, args)
        script = ctx.params.get("arguments") or []
        if script and not names_script:
            ctx.fail(f"unexpected argument {script[0]}; only a script has arguments")
        command: Any = self.callback
        words = takewhile(lambda word: word != "--", script)
        moved = [name for word in words if (name := word.partition("=")[0]) in command.reserved]
        if moved and "--" not in typed[: len(typed) - len(script)]:
            stands = "stands" if len(moved) == 1 else "stand"
            ctx.fail(
                f"{', '.join(moved)} {stands} after {named}, where the script's own options are; "
                f"put dpbench's options before it, or -- if it is the script that has {moved[0]}"
            )
        return left

    def _first_word(self, ctx: Any, typed: list[str]) -> tuple[str, bool]:
        """The first argument, which may name a script, and whether -m stands before it."""
        ctx.allow_interspersed_args = False
        first = next(param.name for param in self.params if param.param_type_name == "argument")
        with suppress(Exception):  # a usage error, which the second parser raises again
            values, _, _ = self.make_parser(ctx).parse_args(args=[*typed])
            return str(values.get(first) or ""), bool(values.get("module"))
        return "", False
