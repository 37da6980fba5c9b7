"""A command whose first argument may be a training script: what follows is the script's own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dpbench.cli.help import Command
from dpbench.options.model import ALWAYS_OURS
from dpbench.options.script import is_script


class ScriptCommand(Command):
    """Options before the script are the command's, everything after it the script's, "--" and
    --help too; an option that only dpbench can mean is refused there, unless "--" stands before
    the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        first = next(param.name for param in self.params if param.param_type_name == "argument")
        named, is_module = "", False
        with suppress(Exception):  # a usage error, which the second parser raises again
            values, _, _ = self.make_parser(ctx).parse_args(args=[*args])
            named, is_module = str(values.get(first) or ""), bool(values.get("module"))
        measures_script = is_module or is_script(named)
        ctx.allow_interspersed_args = not measures_script
        typed = [*args]
        left = super().parse_args(ctx, args)
        script = (ctx.params.get("arguments") or []) if measures_script else []
        ours = {name for param in self.params for name in param.opts if name in ALWAYS_OURS}
        before_dashes = script[: script.index("--")] if "--" in script else script
        moved = [name for word in before_dashes if (name := word.partition("=")[0]) in ours]
        if moved and "--" not in typed[: len(typed) - len(script)]:
            stands = "stands" if len(moved) == 1 else "stand"
            ctx.fail(
                f"{', '.join(moved)} {stands} after {named}, where the script's own options are; "
                f"put dpbench's options before it, or -- if it is the script that has {moved[0]}"
            )
        return left
