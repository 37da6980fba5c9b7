"""A training script on the command line: it follows the options of dpbench's command, and all that
follows it is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from dpbench.errors import UsageError
from dpbench.messages import option_words
from dpbench.options.model import Options, Panel, option
from dpbench.specs.axes import AXES, PLACEHOLDER, PLACEHOLDERS

DEFAULT_SCRIPT_WARMUP = 10
"""Warm-up steps of a script: torch's wrapper and loader workers settle in the first ones."""
DEFAULT_SCRIPT_WINDOW_SECONDS = 0.5
"""Time that the steps of a script as it is fill. Its start takes far longer, so that more runs tell
more than longer ones."""
MIN_SCRIPT_STEPS = 20
"""Fewest steps that are timed as they are: two segments of a round."""


def is_script(word: str) -> bool:
    """Whether a word names a training script, and no results folder."""
    return word.endswith(".py") and not Path(word).is_dir()


def _words(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value)


class TrainingScript(Options):
    """A training script, which the first positional argument of the command names."""

    named_by: ClassVar[str] = "script"
    """The field of that argument."""
    arguments: Annotated[tuple[str, ...], BeforeValidator(_words)] = option(
        (), "Arguments of the script.", "ARGUMENTS", argument=True, repeated=True, hidden=True
    )
    module: bool = Panel.MEASUREMENT.option(
        False, "The script is a module, as in python -m.", also=("-m",)
    )

    @property
    def script_and_arguments(self) -> tuple[str, ...]:
        """What python would get: ("train.py", "--lr", "1"), ("-m", "package.train"), or nothing."""
        named = getattr(self, self.named_by)
        if named is None or not (self.module or is_script(str(named))):
            return ()
        return (*("-m",) * self.module, str(named), *self.arguments)

    def require_script_or_nothing(self) -> None:
        """Raise UsageError for -m without a module, and for arguments of what is no script."""
        if self.script_and_arguments:
            return
        if self.module:
            raise UsageError("-m: expected the name of a module")
        for extra in self.arguments:
            raise UsageError(f"unexpected argument {extra}; only a script has arguments")

    def require_settings_of_scripts(self) -> None:
        """Raise UsageError for options that have no effect on a script, and for placeholders
        without values."""
        places = {place for word in self.arguments for place in PLACEHOLDER.findall(word)}
        self.require_effect("script", "a training script decides that itself; leave it out")
        for place, setting in PLACEHOLDERS.items():
            name = AXES[setting].option_field if setting in AXES else "batch_sizes"
            shown = option_words(name)
            if name in self.given and place not in places:
                raise UsageError(
                    f"{shown}: the script does not read it; write its place into the arguments of "
                    f"the script, as in train.py --{place.replace('_', '-')} {{{place}}}"
                )
            if place in places and name not in self.given:
                raise UsageError(
                    f"{{{place}}} in the arguments of the script: expected its values in {shown}"
                )
