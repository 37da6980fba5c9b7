"""A command that measured, as results folders keep it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

from dpbench.messages import as_typed, escaped, option_words


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """A command of dpbench with the options that were given."""

    name: str
    options: dict[str, Any]
    """Plain values by field: {"gpus": 2, "backends": ["gloo", "shm"], "charts": False}."""
    arguments: tuple[str, ...] = ()
    """The words after the options, such as a training script with its own arguments."""

    def again(self, **changes: Any) -> CommandLine:
        """The same with other values of some options, by field: None and an empty list leave an
        option out, and options that it did not have come last."""
        merged = (self.options | changes).items()
        kept = {field: value for field, value in merged if value is not None and value != []}
        return replace(self, options=kept)

    @property
    def words(self) -> list[str]:
        """Everything after the name."""
        words = list[str]()
        for field, value in self.options.items():
            name = option_words(field)
            if value is True:
                words.append(name)
            elif value is False:
                words.append(f"--no{name[1:]}")
            else:
                words += [name, as_typed(value)]
        return [*words, *self.arguments]

    @property
    def text(self) -> str:
        """The whole line for a shell, with escapes for what a terminal would act upon."""
        return escaped(shlex.join(["dpbench", self.name, *self.words]))
