"""A command whose first argument may be a training script: what follows is the script's own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dpbench.cli.help import Command, LongCommand
from dpbench.options.script import is_script


class ScriptCommand(Command):
    """Options before the script are the command's, everything after it the script's, "--" and
    --help too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        first = next(one.name for one in self.params if one.param_type_name == "argument")
        named, is_module = "", False
        with suppress(Exception):  # a usage error, which the second parser raises again
            found, _, _ = self.make_parser(ctx).parse_args(args=[*args])
            named, is_module = str(found.get(first) or ""), bool(found.get("module"))
        measures_script = is_module or is_script(named)
        if named and first == "script" and not measures_script:
            ctx.fail(f"Got unexpected extra argument ({named})")
        ctx.allow_interspersed_args = not measures_script
        return super().parse_args(ctx, args)


class LongScriptCommand(ScriptCommand, LongCommand):
    """The same for a command with many options."""
