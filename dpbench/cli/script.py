"""A command whose first argument may be a training script: what follows is the script's own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dpbench.cli.help import Command
from dpbench.messages import say
from dpbench.options.shared import is_script


class ScriptCommand(Command):
    """Options before the script are the command's, and what follows it is the script's, "--" and
    --help too. An option that hardly any script has is the command's there as well, unless "--"
    stands before the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named, is_module, words = self._find_script(ctx, args)
        names_script = is_script(named, is_module=is_module)
        before = args[: len(args) - len(words)]
        if names_script and "--" not in before:
            own, others = self._own_options(named, words)
            args = [*own, *before, *others]
        ctx.allow_interspersed_args = not names_script
        left = super().parse_args(ctx, args)
        if (extra := ctx.params.get("arguments")) and not names_script:
            ctx.fail(f"unexpected argument {extra[0]}; only a script has arguments")
        return left

    def _find_script(self, ctx: Any, args: list[str]) -> tuple[str, bool, list[str]]:
        """The first argument, which may name a script, whether -m stands before it, and the words
        after it."""
        ctx.allow_interspersed_args = False
        first = next(param.name for param in self.params if param.param_type_name == "argument")
        with suppress(Exception):  # a usage error, which the second parser raises again
            values, _, _ = self.make_parser(ctx).parse_args(args=[*args])
            words = [*(values.get("arguments") or ())]
            return str(values.get(first) or ""), bool(values.get("module")), words
        return "", False, []

    def _own_options(self, script: str, words: list[str]) -> tuple[list[str], list[str]]:
        """The options of the command among the words after a script, each one word, and the other
        words. Says which options those are."""
        command: Any = self.callback
        flags = {
            name for param in self.params if getattr(param, "is_flag", False) for name in param.opts
        }
        own, others = list[str](), list[str]()
        rest = iter(words)
        for word in rest:
            name, equals, _ = word.partition("=")
            if word == "--":
                others += [word, *rest]
            elif name not in command.reserved:
                others.append(word)
            elif equals or name in flags:
                own.append(word)
            else:
                own.append(f"{word}={next(rest, '')}")
        if own:
            names = [word.partition("=")[0] for word in own]
            say(
                f"{', '.join(names)} after {script}: options of dpbench; put -- before {script} if "
                f"it is the script that has {names[0]}"
            )
        return own, others
