"""What models of options are made of: a declaration for help, command line, files and Python.

A field is `name: type = Panel.SETTINGS.option(default, "Help.", "METAVAR", ...)`. It is the option
`--name` on the command line, `name` in a config file and an argument `name` in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from dpbench.messages import as_typed
from dpbench.options.types import COMMAS
from dpbench.specs.command_line import CommandLine
from dpbench.specs.workload import positional_words

Scope = Literal["measured", "call", "shell"]
"""What an option is about, and so where its value may come from: "measured" is what is measured or
trained, and comes from files, presets and Python, too; "call" belongs to one call, so no file has
it; "shell" is for the command line only, so Python does not have it either."""
Subject = Literal["model", "script", "results"]
"""What a command may be about: a model or a training script, which it measures, or stored results,
which it reads."""
ALL_SUBJECTS: tuple[Subject, ...] = ("model", "script", "results")
ONLY_MODELS: tuple[Subject, ...] = ("model",)


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

    def option(self, default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
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
    name: str = ""
    """The name on the command line; by default that of the field, or the metavar of an argument."""
    also: tuple[str, ...] = ()
    """Further names."""
    off: str = ""
    """The name that turns off what is on by default."""
    usual: str | None = None
    """What help shows as the default, if the command chooses it."""
    scope: Scope = "measured"
    affects: tuple[Subject, ...] = ("model", "script")
    """The subjects that it has an effect on; for another one it is refused."""
    hidden: bool = False
    argument: bool = False
    repeated: bool = False
    """Whether it may be given more than once; a repeated argument takes everything that follows."""


class Options(BaseModel):
    """Base of the models; values are checked when one is made, and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)
    presets: ClassVar[tuple[str, ...]] = ()
    """The values of --preset."""

    @property
    def given(self) -> dict[str, OptionInfo]:
        """The options that are not left at their defaults, by field."""
        options = options_of(type(self))
        return {name: options[name] for name in sorted(self.model_fields_set)}

    def same_named(self, spec: type[Any]) -> dict[str, Any]:
        """The values of the fields that a specification has by the same names; None is left out,
        so that its own default holds."""
        names = [field.name for field in fields(spec) if field.name in type(self).model_fields]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def command(self, name: str, *left_out: str) -> CommandLine:
        """The command of this name that gives these options again, with the values of its preset,
        but for fields that are left out."""
        options, positional = dict[str, Any](), list[str]()
        given = self.model_dump(mode="json", exclude_unset=True, exclude={"preset", *left_out})
        for field, info in options_of(type(self)).items():
            value = given.get(field)
            if value is None or value is False:
                options |= {info.off: True} if value is False and info.off else {}
            elif info.argument:
                positional += value if info.repeated else [as_typed(value)]
            else:
                options[info.name] = value
        arguments = positional_words(tuple(positional))
        return CommandLine(name=name, options=options, arguments=arguments)

    def command_line(self, *left_out: str) -> list[str]:
        """The words of that command after its name."""
        return self.command("", *left_out).words


@functools.cache
def options_of(model: type[Options]) -> dict[str, OptionInfo]:
    """The declared options of a model, by field, with all their names: a list in the plural has its
    singular, too. An argument that takes the rest comes last."""
    options = {}
    for name, field in model.model_fields.items():
        (info,) = (data for data in field.metadata if isinstance(data, OptionInfo))
        takes_list = not info.argument and _takes_list(field.annotation, field.metadata)
        word = str(info.metavar) if info.argument else f"--{name.replace('_', '-')}"
        options[name] = replace(
            info,
            name=info.name or word,
            also=(word[:-1], *info.also) if takes_list and name.endswith("s") else info.also,
            off=f"--no{word[1:]}" if field.default is True else "",
        )
    return dict(sorted(options.items(), key=lambda item: item[1].argument and item[1].repeated))


def _takes_list(annotation: Any, metadata: Sequence[Any]) -> bool:
    """Whether a type is a CommaList, or allows one."""
    parts = get_args(annotation)
    return COMMAS in metadata or any(_takes_list(p, getattr(p, "__metadata__", ())) for p in parts)
