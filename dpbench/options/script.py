"""A training script on the command line: it follows the options of dpbench's command, and all that
follows it is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, model_validator

from dpbench.errors import UsageError
from dpbench.messages import option_words
from dpbench.options.model import Options, Panel, Subject, option, options_of

DEFAULT_SCRIPT_WARMUP = 10
"""Warm-up steps of a script: torch's wrapper and loader workers settle in the first ones."""
MIN_SCRIPT_STEPS = 20
"""Fewest steps that are timed as they are: two segments of a round."""

SUBJECT_WORDS: dict[Subject, str] = {
    "model": "a model",
    "script": "a training script",
    "results": "stored results",
}


def is_script(word: str) -> bool:
    """Whether a word names a training script, and no results folder."""
    return word.endswith(".py") and not Path(word).is_dir()


def _words(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value)


class TrainingScript(Options):
    """A training script, which the first positional argument of the command may name."""

    without_script: ClassVar[Subject] = "model"
    """The subject if the argument names no script."""
    arguments: Annotated[tuple[str, ...], BeforeValidator(_words)] = option(
        (), "Arguments of the script.", "ARGUMENTS", argument=True, repeated=True, hidden=True
    )
    module: bool = Panel.MEASUREMENT.option(
        False, "The script is a module, as in python -m.", also=("-m",)
    )

    @property
    def subject(self) -> Subject:
        """What the command measures or reads."""
        is_named = self.named is not None and (self.module or is_script(str(self.named)))
        return "script" if is_named else self.without_script

    @property
    def named(self) -> Any:
        """The first positional argument of the command."""
        options = options_of(type(self)).items()
        return getattr(self, next(name for name, info in options if info.argument))

    @property
    def script_and_arguments(self) -> tuple[str, ...]:
        """What python would get: ("train.py", "--lr", "1"), ("-m", "package.train"), or nothing."""
        if self.subject != "script":
            return ()
        return (*("-m",) * self.module, str(self.named), *self.arguments)

    @model_validator(mode="after")
    def _affect_the_subject(self) -> Self:
        """Raise UsageError for options that have no effect on the subject."""
        if self.module and self.subject != "script":
            raise UsageError("-m: expected the name of a module")
        if self.arguments and self.subject != "script":
            extra = self.arguments[0]
            raise UsageError(f"unexpected argument {extra}; only a script has arguments")
        # A preset stands for other options, so that it is refused before them.
        for name, info in sorted(self.given.items(), key=lambda item: item[0] != "preset"):
            if self.subject not in info.affects:
                words = SUBJECT_WORDS[self.subject]
                raise UsageError(f"{option_words(name)}: no effect on {words}; leave it out")
        return self
