"""A training script on the command line: it follows the options of dpbench's command, and all that
follows it is its own."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, model_validator

from dpbench.errors import UsageError
from dpbench.messages import option_words
from dpbench.options.model import Options, Panel, Subject

DEFAULT_SCRIPT_WARMUP = 10
"""Warm-up steps of a script: torch's wrapper and loader workers settle in the first ones."""
MIN_SCRIPT_STEPS = 20
"""Fewest steps that are timed as they are: two segments of a round."""


def is_script(word: str, *, is_module: bool) -> bool:
    """Whether a word names a training script, as a file or after -m, and no results folder."""
    return is_module or (word.endswith(".py") and not Path(word).is_dir())


class TrainingScript(Options):
    """A training script, which an argument of the command may name."""

    subjects: ClassVar[tuple[Subject, ...]]
    """What the command can be about; the first one without that argument."""
    named_by: ClassVar[str]
    """The field of that argument."""
    arguments: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = Panel.HIDDEN.option(
        "Arguments of the script.", "ARGUMENTS", default=(), argument=True, repeated=True
    )
    module: bool = Panel.MEASUREMENT.option(
        "The script is a module, as in python -m.", default=False, names=("-m",)
    )

    @cached_property
    def subject(self) -> Subject:
        """What the command measures or reads."""
        named = getattr(self, self.named_by)
        if named is None:
            return self.subjects[0]
        names_script = is_script(str(named), is_module=self.module)
        return Subject.SCRIPT if names_script else Subject.RESULTS

    @property
    def script_and_arguments(self) -> tuple[str, ...]:
        """What python would get: ("train.py", "--lr", "1"), ("-m", "package.train"), or nothing."""
        if self.subject is not Subject.SCRIPT:
            return ()
        return (*("-m",) * self.module, str(getattr(self, self.named_by)), *self.arguments)

    @model_validator(mode="after")
    def _affect_the_subject(self) -> Self:
        """Raise UsageError for a subject that the command does not have, and for options that have
        no effect on it."""
        if self.subject not in self.subjects:
            raise UsageError(
                f"{self.named_by}: got {getattr(self, self.named_by)!r}; expected a training "
                "script, whose name ends in .py, or -m and a module"
            )
        if self.module and self.subject is not Subject.SCRIPT:
            raise UsageError("-m: expected the name of a module")
        if self.arguments and self.subject is not Subject.SCRIPT:
            extra = self.arguments[0]
            raise UsageError(f"unexpected argument {extra}; only a script has arguments")
        # A preset stands for other options, so that it is refused before them.
        for name, info in sorted(self.given.items(), key=lambda item: item[0] != "preset"):
            if self.subject not in info.affects:
                raise UsageError(f"{option_words(name)}: no effect on {self.subject}; leave it out")
        return self
