"""What models of options are made of: a declaration for help, command line, files and Python.

A field is `name: type = Panel.SETTINGS.option("Help.", "METAVAR", default=...)`. It is the option
`--name` on the command line, `name` in a config file and an argument `name` in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpbench.messages import as_typed, option_words
from dpbench.specs.command_line import CommandLine

Scope = Literal["measured", "call", "shell"]
"""What an option is about, and so where its value may come from: "measured" is what is measured or
trained, and comes from files, presets and Python, too; "call" belongs to one call, so no file has
it; "shell" is for the command line only, so Python does not have it either."""


ALWAYS_OURS = (
    *("--gpus", "--dry-run", "--oversubscribe", "--repetitions"),
    *("--implementations", "--backends", "--group-sizes", "--batch-sizes"),
)
"""Options that are dpbench's wherever they are typed, unless "--" stands before the script: none of
those that many scripts have, such as --lr and --seed."""
PRINTING = ("as_json", "verbose", "quiet")
"""Fields of options that change only what a command prints."""


class Panel(StrEnum):
    """The headings of options in help, in their order."""

    ARGUMENTS = "Arguments"
    OPTIONS = "Options"
    COMPARED = "Settings to compare (each takes a list)"
    SETTINGS = "Settings"
    DATA = "Model and data"
    MEASUREMENT = "Measurement"
    TRAINING = "Training"
    VERDICT = "Verdict"
    ROWS = "Which rows"
    NETWORK = "Network"
    MACHINE = "Machine"
    NODES = "Several nodes"
    OUTPUT = "Results and output"
    HIDDEN = "Not in help"

    def option(
        self, help: str, metavar: str | None = None, *, default: Any = None, **more: Any
    ) -> Any:
        """Declare a field of a model as an option below this heading; `more` are fields of
        `OptionInfo`."""
        field = Field(default)
        field.metadata.append(OptionInfo(help=help, metavar=metavar, panel=self, **more))
        return field


option = Panel.OPTIONS.option
"""Declares one of the options that most people type, or a positional argument."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionInfo:
    """How one field of a model is an option, or a positional argument."""

    help: str
    metavar: str | None
    panel: Panel
    """The heading in help."""
    names: tuple[str, ...] = ()
    """Names on the command line, beside the one of the field; `options_of` has all of them."""
    usual: str | None = None
    """The default in words, if the command chooses it."""
    scope: Scope = "measured"
    argument: bool = False
    repeated: bool = False
    """Whether it may be given more than once; a repeated argument takes everything that follows."""

    @property
    def name(self) -> str:
        """The name that help and messages use."""
        return self.names[0]

    @property
    def off(self) -> str:
        """The name that turns off what is on by default."""
        return f"--no{self.name[1:]}"


class Options(BaseModel):
    """Base of the models; values are checked when one is made, and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)
    presets: ClassVar[tuple[str, ...]] = ()
    """The values of --preset."""
    subject: ClassVar[str] = "this command"
    """What the options have an effect on, in the words of errors."""

    @classmethod
    def model_for(cls, values: Mapping[str, Any]) -> Any:
        """The model that reads these values: this one, or the part of it whose options have an
        effect on what the first argument of the command names."""
        return cls

    def command(self, name: str) -> CommandLine:
        """The command of this name that gives these options again, with the values of its preset;
        how it prints is no part of it."""
        options, positional = dict[str, Any](), list[str]()
        given = self.model_dump(mode="json", exclude_unset=True, exclude={"preset", *PRINTING})
        for field, info in options_of(type(self)).items():
            value = given.get(field)
            if value is None or (value is False and not type(self).model_fields[field].default):
                continue
            if info.argument:
                positional += value if info.repeated else [as_typed(value)]
            else:
                options[field] = value
        # An argument of a script that dpbench would take for its own stands after "--".
        if any(word.partition("=")[0] in ALWAYS_OURS for word in positional[1:]):
            positional.insert(0, "--")
        return CommandLine(name=name, options=options, arguments=tuple(positional))


@functools.cache
def options_of(model: type[Options]) -> dict[str, OptionInfo]:
    """The declared options of a model, by field, with all their names: that of the field, for a
    plural its singular, too, or the metavar of an argument. An argument that takes the rest comes
    last."""
    options = {}
    for field, declared in model.model_fields.items():
        (info,) = (data for data in declared.metadata if isinstance(data, OptionInfo))
        name = option_words(field)
        takes_value = declared.annotation is not bool
        singular = (name[:-1],) if name.endswith("s") and takes_value else ()
        names = (str(info.metavar),) if info.argument else (name, *singular, *info.names)
        options[field] = replace(info, names=names)
    return dict(sorted(options.items(), key=lambda item: item[1].argument and item[1].repeated))
