"""One pydantic model per command: its command line, config file, Python call and help.

A field of a model is `name: type = option(default, "Help.", ...)`. `command` gives a function the
signature that typer needs, `read` validates the options of several layers, each by itself, so that
an error names the layer it comes from, and `describe` documents a Python call.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from dpbench.errors import UnknownName, UsageError
from dpbench.messages import printable, say

M = TypeVar("M", bound="Options")
Given = Mapping[str, Any]
"""Options that are not left at their defaults, by the names of their fields."""
Scope = Literal["work", "call", "shell"]
"""Where else the value of an option may come from: "work" is what is measured or trained; "call"
belongs to one call of the command, so that no file has it; "shell" has a meaning on the command
line only, so that Python calls do not have it either."""
LONGEST_SHOWN = 60
"""Characters of a wrong value that an error shows."""


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """How one field of a model appears on the command line and in help."""

    help: str
    metavar: str | None = None
    panel: str | None = None
    """The heading under which help shows it; by default the one of the class that declares it."""
    names: tuple[str, ...] = ()
    """Names on the command line; by default the one of the field."""
    also: tuple[str, ...] = ()
    """Further names."""
    usual: str | None = None
    """Help text for a default that the command chooses itself."""
    scope: Scope | None = None
    """By default the one of the class that declares it, or else "work"."""
    hidden: bool = False
    argument: bool = False
    """Whether it is a positional argument."""
    repeated: bool = False
    """Whether it may be given more than once."""

    @property
    def takes_the_rest(self) -> bool:
        """Whether it is all words after the other positional arguments."""
        return self.argument and self.repeated


def option(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
    """Declares a field of a model as an option; `more` are fields of OptionInfo."""
    field = Field(default)
    field.metadata.append(OptionInfo(help, metavar, **more))
    return field


class Options(BaseModel):
    """Base of the models; values are checked when one is made, and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)
    panel: ClassVar[str | None] = None
    """The heading in help of the options that a class declares."""
    scope: ClassVar[Scope] = "work"
    """Their scope."""

    def dump(self) -> dict[str, Any]:
        """All options that a file may have, as a file has them."""
        kept = {name for name, one in options_of(type(self)).items() if _in_file(one)}
        return self.model_dump(mode="json", include=kept)

    def words(self) -> list[str]:
        """The words to type for the options that were given; positional arguments are last."""
        found, arguments = list[str](), list[str]()
        for name, value in self.model_dump(mode="json", exclude_unset=True).items():
            declared = options_of(type(self))[name]
            on, _, off = option_names(declared, name)[0].partition("/")
            if declared.takes_the_rest:
                arguments += value
            elif declared.argument:
                arguments[:0] = [] if value is None else [as_typed(value)]
            elif isinstance(value, bool):
                found += [on] if value else [off] if off else []
            elif value is not None:
                found += [on, as_typed(value)]
        return found + arguments


class Layer(NamedTuple):
    """Some options, and where they come from, as errors name it; "" for the command line."""

    source: str
    values: Given


@functools.cache
def options_of(model: type[Options]) -> dict[str, OptionInfo]:
    """The declared options of a model, by field."""
    found = {}
    for name, field in model.model_fields.items():
        info = [one for one in field.metadata if isinstance(one, OptionInfo)][-1]
        home = vars(next(one for one in model.__mro__ if name in inspect.get_annotations(one)))
        panel, scope = info.panel or home.get("panel"), info.scope or home.get("scope", "work")
        found[name] = replace(info, panel=panel, scope=scope)
    return found


def _in_file(option: OptionInfo) -> bool:
    return option.scope not in ("call", "shell")


def option_names(option: OptionInfo, field: str) -> tuple[str, ...]:
    """The names on the command line, the one that messages use first."""
    return (*(option.names or (f"--{field.replace('_', '-')}",)), *option.also)


def option_name(model: type[Options], field: str) -> str:
    """The name of an option in messages."""
    option = options_of(model)[field]
    if option.argument:
        return option.metavar or field.upper()
    return option_names(option, field)[0].partition("/")[0]


def read(model: type[M], *layers: Layer) -> M:
    """Validates the options of all layers; later ones override earlier ones. Says which lists had
    duplicates, which are removed.

    Raises UsageError, which names the option, what was given, what was expected, and the layer
    unless it is the command line.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        try:
            model.model_validate(layer.values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            message = _refusal(option_name(model, str(first["loc"][0])), first)
            raise UsageError(_from(layer.source, message)) from None
        except UsageError:
            pass  # these options do not go together, but a later layer may override some of them
        values |= layer.values
        sources |= dict.fromkeys(layer.values, layer.source)
    unique: dict[str, tuple[Any, ...]] = {}
    try:
        found = model.model_validate(values, context=unique)
    except UsageError as error:
        source = next(filter(None, (sources.get(name) for name in error.about)), "")
        raise UsageError(_from(source, str(error)), about=error.about) from None
    for name, kept in unique.items():
        say(f"{option_name(model, name)}: duplicates removed: {as_typed(kept)}")
    return found


def read_value(name: str, kind: Any, value: Any) -> Any:
    """Validates one value that no model holds; raises UsageError that begins with `name`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UsageError(_refusal(name, error.errors(include_url=False)[0])) from None


def _from(source: str, message: str) -> str:
    return f"{source}: {message}" if source else message


def _refusal(name: str, error: Mapping[str, Any]) -> str:
    """One line: the option, what it got and what it expected, without pydantic's own words."""
    what = str(error["msg"]).removeprefix("Value error, ")
    what = what.replace("Input should be", "expected").partition(", unable")[0]
    got = printable(repr(error["input"]), LONGEST_SHOWN)
    return f"{name}: got {got}; {what[:1].lower()}{what[1:]}"


def as_typed(value: Any) -> str:
    """A value of a file or of Python as a shell would have it: [32, 64] as "32,64"."""
    if isinstance(value, list | tuple):
        return ",".join(map(as_typed, value))
    return str(value)


def keyed(
    model: type[Options], source: str, given: Mapping[str, Any], *, of_python: bool = False
) -> dict[str, Any]:
    """What a file, or a call `of_python`, gives by field: every spelling of an option is accepted.

    None leaves an option out. Raises UsageError for a key that is not known, with the nearest that
    is, for one that belongs to the command line, and for two names of one option.
    """
    fields: dict[str, str] = {}
    for field, option in options_of(model).items():
        names = (option_name(model, field), field, *option_names(option, field))
        fields |= {_key(name): field for name in names}
    declared = options_of(model)
    known = {
        key: field
        for key, field in fields.items()
        if (declared[field].scope != "shell" if of_python else _in_file(declared[field]))
    }
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = _key(str(name))
        if key in fields.keys() - known.keys():
            raise UsageError(f"{source}: {name} is an option of the command line only")
        if key not in known:
            if of_python:
                raise UnknownName(f"argument of {source}:", name, known)
            raise UnknownName(f"key in {source}:", name, [one.replace("_", "-") for one in known])
        if value is None:
            continue
        if known[key] in found:
            raise UsageError(f"{source}: {name} is given twice, under two names; name it once")
        # A generator is read once; layers are validated more than once.
        found[known[key]] = [*value] if isinstance(value, Iterator) else value
    return found


def _key(name: str) -> str:
    return name.partition("/")[0].lstrip("-").replace("-", "_")


def read_file(path: Path) -> dict[str, Any]:
    """The options in a TOML or YAML file; values of YAML stay the text that they are.

    Raises UsageError that names the file.
    """
    import tomllib

    import yaml

    kind = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"--config {path}: expected a name that ends in .yaml, .yml or .toml")
    try:
        text = path.read_text(encoding="utf-8")
        # YAML itself would make 8 of 010, false of off and 90 of 1:30.
        content = tomllib.loads(text) if kind == "TOML" else yaml.load(text, yaml.BaseLoader)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{path} is not {kind}: {' '.join(str(error).split())}") from None
    if content in (None, ""):
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected options, as in 'batch-size: 32'")
    return {key: None if value in ("", "null", "~") else value for key, value in content.items()}


def file_layers(
    model: type[Options], given: Given, find_preset: Callable[[str], Path]
) -> list[Layer]:
    """The layers of --preset and --config, the lower one first; raises UsageError."""
    layers = []
    if (preset := given.get("preset")) is not None:
        source = f"--preset {preset}"
        layers.append(Layer(source, keyed(model, source, read_file(find_preset(preset)))))
    if (config := given.get("config")) is not None:
        layers.append(Layer(str(config), keyed(model, str(config), read_file(Path(config)))))
    return layers


def command(
    model: type[Options],
) -> Callable[[Callable[[dict[str, Any]], Any]], Callable[..., Any]]:
    """Gives `function(given)` the signature that typer makes a command from.

    `given` has the options that were typed, by field, as text; flags as truth values.
    """

    def decorate(function: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(**typed: Any) -> Any:
            return function({name: value for name, value in typed.items() if value is not None})

        declared = options_of(model)
        in_order = sorted(declared, key=lambda name: declared[name].takes_the_rest)
        parameters = [_parameter(model, name) for name in in_order]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        del wrapper.__wrapped__  # typer would read the annotations of what is wrapped
        return wrapper

    return decorate


def _parameter(model: type[Options], name: str) -> inspect.Parameter:
    field, option = model.model_fields[name], options_of(model)[name]
    shown = option.usual or _shown(field.default, option_names(option, name)[0])
    kind: Any = bool if field.annotation in (bool, bool | None) else str
    if option.argument:
        how = typer.Argument(
            metavar=option.metavar, help=option.help, show_default=shown, hidden=option.hidden
        )
    else:
        how = typer.Option(
            *option_names(option, name),
            metavar=option.metavar,
            help=option.help,
            rich_help_panel=option.panel,
            hidden=option.hidden,
            show_default=shown,
        )
    kind = list[str] if option.repeated else kind
    required = field.is_required()
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, how],
    )


def _shown(default: Any, names: str) -> str | bool:
    """The default in help; False for one that goes without saying."""
    if isinstance(default, bool):
        return ("on" if default else "off") if "/" in names else False
    return False if default in (None, (), PydanticUndefined) else as_typed(default)


def describe(
    function: Callable[..., Any],
    model: type[Options],
    flags: Mapping[str, tuple[bool, str]],
    end: str,
    first: str = "arch",
) -> None:
    """Documents a Python call that takes the options of a model.

    Its signature has the options of the first panel of help, of which `first` is positional, and
    `flags`, each with its default and help; its text describes all options by panel, followed by
    `end`.
    """
    panels: dict[str, dict[str, str]] = {"Args": {}}
    for name, one in options_of(model).items():
        if one.scope != "shell":
            default = model.model_fields[name].default
            usual = one.usual or _shown(default, option_names(one, name)[0])
            text = f"{one.help} Default: {usual}." if usual else one.help
            # Help of a call names other options as arguments: --lr as `lr`.
            named = re.sub(r"--([a-z-]+)", lambda found: f"`{_key(found[1])}`", text)
            panels.setdefault(one.panel or "Args", {})[name] = named
    others = [name for name in panels["Args"] if name != first]
    kinds = inspect.Parameter
    parameters = [
        kinds(first, kinds.POSITIONAL_OR_KEYWORD, default=None),
        *(kinds(name, kinds.KEYWORD_ONLY, default=None) for name in others),
        *(kinds(name, kinds.KEYWORD_ONLY, default=on) for name, (on, _) in flags.items()),
        kinds("settings", kinds.VAR_KEYWORD),
    ]
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=function.__annotations__["return"]
    )
    panels["Args"] |= {name: text for name, (_, text) in flags.items()}
    paragraphs = [
        "\n".join([f"{panel}:", *(f"    {name}: {text}" for name, text in texts.items())])
        for panel, texts in panels.items()
    ]
    function.__doc__ = "\n\n".join([inspect.getdoc(function) or "", *paragraphs, end])
