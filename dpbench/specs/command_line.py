"""A command that measured, as results folders keep it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

from dpbench.messages import as_typed, escaped


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """A command of dpbench with the options that were given."""

    name: str
    options: dict[str, Any]
    """Plain values by option: {"--gpus": 2, "--backends": ["gloo", "shm"], "--resume": true}."""
    arguments: tuple[str, ...] = ()
    """The words after the options, such as a training script with its own arguments."""

    def changed(self, options: dict[str, Any]) -> CommandLine:
        """The same with other values of some options; an empty list leaves an option out."""
        merged = (self.options | options).items()
        return replace(self, options={name: value for name, value in merged if value != []})

    @property
    def words(self) -> list[str]:
        """Everything after the name."""
        pairs = self.options.items()
        options = [[name] if value is True else [name, as_typed(value)] for name, value in pairs]
        return [*(word for option in options for word in option), *self.arguments]

    @property
    def text(self) -> str:
        """The whole line for a shell, with escapes for what a terminal would act upon."""
        return escaped(shlex.join(["dpbench", self.name, *self.words]))
