"""A command whose first argument may be a training script: what follows is the script's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dpbench.cli.help import Command, LongCommand
from dpbench.options.script import is_script
from dpbench.specs.workload import MISPLACED


class ScriptCommand(Command):
    """Options before the script are the command's, everything after it the script's, "--" and
    --help too; an option that only dpbench can mean is refused there, unless "--" stands before
    the script."""

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
        typed = [*args]
        left = super().parse_args(ctx, args)
        arguments = (ctx.params.get("arguments") or []) if measures_script else []
        before = typed[: len(typed) - len(arguments)]
        if "--" not in before:
            self._refuse_misplaced(ctx, before, arguments)
        return left

    def _refuse_misplaced(self, ctx: Any, before: Sequence[str], arguments: Sequence[str]) -> None:
        """End with a usage error if options of this command stand among the script's arguments."""
        is_flag = {name: getattr(one, "is_flag", False) for one in self.params for name in one.opts}
        found, moved, kept = [], list[str](), list[str]()
        left = [*arguments]
        while left and left[0] != "--":
            name = left[0].partition("=")[0]
            is_ours = name in MISPLACED and name in is_flag
            has_value = is_ours and not is_flag[name] and name == left[0]
            (moved if is_ours else kept).extend(left[: 1 + has_value])
            found += [name] * is_ours
            left = left[1 + has_value :]
        if not found:
            return
        *options, script = before
        one = len(found) == 1
        ours = shlex.join([*ctx.command_path.split(), *options, *moved, script, *kept, *left])
        theirs = shlex.join([*ctx.command_path.split(), *options, "--", script, *arguments])
        ctx.fail(
            f"{', '.join(found)} {'stands' if one else 'stand'} after {script}, where the script's "
            f"own options are; for dpbench write: {ours} (for the script: {theirs})"
        )


class LongScriptCommand(ScriptCommand, LongCommand):
    """The same for a command with many options."""
