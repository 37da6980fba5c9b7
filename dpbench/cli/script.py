"""A command whose first argument may be a training script: what follows is the script's own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dpbench.cli.help import Command


class ScriptCommand(Command):
    """Options before the script are the command's, everything after it the script's, "--" and
    --help too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        with suppress(Exception):  # a usage error, which the second parser raises again
            found, _, _ = self.make_parser(ctx).parse_args(args=[*args])
            first = str(found.get("folder"))
            ctx.allow_interspersed_args = not (found.get("module") or first.endswith(".py"))
        return super().parse_args(ctx, args)
