"""What models of options are made of: a declaration for help, command line, files and Python.

A field is `name: type = Panel.SETTINGS.option("Help.", "METAVAR", default=...)`. It is the option
`--name` on the command line, `name` in a config file and an argument `name` in Python.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from enum import Flag, StrEnum, auto
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpbench.errors import UsageError
from dpbench.messages import as_typed, option_words
from dpbench.specs.command_line import CommandLine


class Subject(Flag):
    """What a command is about: one of the first three. What an option has an effect on may be
    several of them."""

    MODEL = auto()
    SCRIPT = auto()
    RESULTS = auto()
    MEASURED = MODEL | SCRIPT
    ANY = MEASURED | RESULTS

    @property
    def words(self) -> str:
        """What messages call it."""
        return {
            Subject.MODEL: "a model",
            Subject.SCRIPT: "a training script",
            Subject.RESULTS: "stored results",
        }[self]


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
    HIDDEN = ""

    def option(
        self, help: str, metavar: str | None = None, *, default: Any = None, **more: Any
    ) -> Any:
        """Declare a field of a model as an option below this heading, or as an argument; `more` are
        fields of `OptionInfo`. Without a metavar it is a flag, which is off by default."""
        is_off = metavar is None and default is None
        field: Any = Field(False if is_off else default)
        more = {"subjects": self.subjects} | more
        field.metadata.append(OptionInfo(panel=self, help=help, metavar=metavar, **more))
        return field

    @property
    def subjects(self) -> Subject:
        """What options below this heading have an effect on, unless they say it themselves."""
        if self in (Panel.COMPARED, Panel.SETTINGS, Panel.MEASUREMENT, Panel.MACHINE):
            return Subject.MEASURED
        return {Panel.DATA: Subject.MODEL, Panel.ROWS: Subject.RESULTS}.get(self, Subject.ANY)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionInfo:
    """How one field of a model is an option, or a positional argument."""

    panel: Panel
    """Where help describes it."""
    help: str
    metavar: str | None
    """The word for its value; None for a flag."""
    names: tuple[str, ...] = ()
    """Names on the command line, beside the one of the field; `options_of` has all of them."""
    usual: str | None = None
    """The default in words, if the command chooses it."""
    subjects: Subject
    """What a command may be about for the option to have an effect; it is refused otherwise."""
    printed: bool = False
    """Whether it changes nothing but what the command line prints: files and Python do not have it,
    and a command that is repeated leaves it out."""
    repeated: bool = False
    """Whether it may be given more than once; a repeated argument takes everything that follows."""

    @property
    def argument(self) -> bool:
        """Whether its place on the command line says what it is, and no name."""
        return self.panel is Panel.ARGUMENTS

    @property
    def name(self) -> str:
        """The name that help and messages use."""
        return self.names[0]


class OptionError(UsageError):
    """An option that cannot be used as it is given. The message is its name, as on the command line
    unless another one is given, and the problem: "--steps" and ": got '0'; expected 1 or more"."""

    def __init__(self, field: str, problem: str, name: str | None = None) -> None:
        self.field, self.problem, self.name = field, problem, name or option_words(field)
        super().__init__(f"{self.name}{problem}")


class Options(BaseModel):
    """Base of the models; values are checked when one is made, and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)
    presets: ClassVar[tuple[str, ...]] = ()
    """The values of --preset."""

    @property
    def subject(self) -> Subject:
        """What the command is about; it decides which options have an effect."""
        return Subject.MODEL

    @model_validator(mode="after")
    def _have_an_effect(self) -> Self:
        """Raise OptionError for an option without an effect on what the command is about."""
        for field, info in options_of(type(self)).items():
            if field in self.model_fields_set and self.subject not in info.subjects:
                raise OptionError(field, f": no effect on {self.subject.words}; leave it out")
        return self

    def command(self, name: str) -> CommandLine:
        """The command of this name that gives these options again, with the values of its preset;
        how it prints is no part of it."""
        options = dict[str, Any]()
        positional = list[str]()
        given = self.model_dump(mode="json", exclude_unset=True, exclude={"preset"})
        for field, info in options_of(type(self)).items():
            value = None if info.printed else given.get(field)
            if value is None or (value is False and not type(self).model_fields[field].default):
                continue
            if info.argument:
                positional += value if info.repeated else [as_typed(value)]
            else:
                options[field] = value
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
        singular = (name[:-1],) if name.endswith("s") and info.metavar is not None else ()
        names = (str(info.metavar),) if info.argument else (name, *singular, *info.names)
        options[field] = replace(info, names=names)
    return dict(sorted(options.items(), key=lambda item: item[1].argument and item[1].repeated))
