"""One pydantic model per command: its command line, config file, Python call and help.

A field of a model is `name: type = option(default, "Help.", ...)`. `command` gives a function the
signature that typer needs, and `read_options` validates what was typed, above what a config file
and a preset have.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from dpbench.errors import InvalidValue, UnknownName, UsageError
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
EXPECTED = {
    **dict.fromkeys(
        ("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "a whole number"
    ),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "a valid boolean, true or false"),
    **dict.fromkeys(("path_type", "string_type"), "a name"),
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "at most {le:,.0f}",
    "literal_error": "{expected}",
}
"""What errors of pydantic expected, by their type."""


@dataclass(frozen=True, slots=True)
class Declared:
    """How one field of a model is an option."""

    shown: ParameterInfo
    """What typer shows of it on the command line and in help."""
    names: tuple[str, ...]
    """The spellings on the command line, first the one that messages use."""
    scope: Scope
    repeated: bool
    """Whether it may be given more than once."""

    @property
    def name(self) -> str:
        """The spelling that messages use."""
        return self.names[0].partition("/")[0]

    @property
    def takes_the_rest(self) -> bool:
        """Whether it is all words after the other positional arguments."""
        return self.repeated and isinstance(self.shown, ArgumentInfo)


def option(
    default: Any,
    help: str,
    metavar: str | None = None,
    *,
    panel: str | None = None,
    names: tuple[str, ...] = (),
    usual: str | None = None,
    scope: Scope = "work",
    hidden: bool = False,
    argument: bool = False,
    repeated: bool = False,
) -> Any:
    """Declares a field of a model as an option, or as a positional argument.

    Help shows it under the heading `panel`, with `usual` as its default if the command chooses
    that. The first of its `names` is the one that messages use; without any it has that of the
    field.
    """
    default_shown: str | bool = usual or False
    if not usual and isinstance(default, bool):
        default_shown = ("on" if default else "off") if "/" in "".join(names) else False
    elif not usual and default not in (None, (), ...):
        default_shown = as_typed(default)
    kind: Callable[..., ParameterInfo] = functools.partial(typer.Option, ...)
    if argument:
        kind, names = typer.Argument, (str(metavar),)
    shown = kind(
        metavar=metavar,
        help=help,
        rich_help_panel=panel,
        hidden=hidden,
        show_default=default_shown,
    )
    field = Field(default)
    field.metadata.append(Declared(shown, names, scope, repeated))
    return field


class Options(BaseModel):
    """Base of the models; values are checked when one is made, and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    def words(self) -> list[str]:
        """The words to type for the options that were given; positional arguments are last."""
        found, arguments = list[str](), list[str]()
        for name, value in self.model_dump(mode="json", exclude_unset=True).items():
            declared = options_of(type(self))[name]
            on, _, off = declared.names[0].partition("/")
            if declared.takes_the_rest:
                arguments += value
            elif isinstance(declared.shown, ArgumentInfo):
                arguments[:0] = [] if value is None else [as_typed(value)]
            elif isinstance(value, bool):
                found += [on] if value else [off] if off else []
            elif value is not None:
                found += [on, as_typed(value)]
        return found + arguments


@functools.cache
def options_of(model: type[Options]) -> dict[str, Declared]:
    """The declared options of a model, by field."""
    found = {
        name: next(one for one in field.metadata if isinstance(one, Declared))
        for name, field in model.model_fields.items()
    }
    return {
        name: replace(one, names=one.names or (f"--{name.replace('_', '-')}",))
        for name, one in found.items()
    }


def option_name(model: type[Options], field: str) -> str:
    """The name of an option in messages."""
    return options_of(model)[field].name


def read_options(
    model: type[M], given: Given, find_preset: Callable[[str], Path] | None = None
) -> M:
    """Validates the options that are given, above those of --config, and of --preset below it.

    Says what a preset asks for. Raises UsageError that names the option, what was given, what was
    expected, and the file or preset that has it.
    """
    layers: list[tuple[str, Given]] = []
    if find_preset is not None and (preset := given.get("preset")) is not None:
        source = f"--preset {preset}: "
        layers.append((source, keyed(model, source, read_file(find_preset(preset)))))
        say(f"{source}{shlex.join(model(**layers[0][1]).words())}")
    if (config := given.get("config")) is not None:
        source = f"{config}: "
        layers.append((source, keyed(model, source, read_file(Path(config)))))
    typed = {name: value for name, value in given.items() if name not in ("preset", "config")}
    layers.append(("", typed))
    values = {name: value for _, layer in layers for name, value in layer.items()}
    sources = {name: source for source, layer in layers for name in layer}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        shown = sources.get(field, "") + option_name(model, field)
        raise InvalidValue(field, _problem(error), shown=shown) from None
    except UsageError as error:
        source = next(filter(None, (sources.get(name) for name in error.about)), "")
        error.args = (f"{source}{error}",)
        raise


def read_value(name: str, kind: Any, value: Any) -> Any:
    """Validates one value that no model holds; raises UsageError that begins with `name`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"{name}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    """What the first wrong value was and what was expected, by all alternatives of its type."""
    errors = error.errors(include_url=False)
    wrong = errors[0]["input"]
    got = f"got {printable(repr(wrong), LONGEST_SHOWN)}"
    if errors[0]["type"] == "value_error":
        return f"{got}; {errors[0]['ctx']['error']}"
    alternatives = [
        EXPECTED.get(one["type"], one["msg"]).format(**one.get("ctx", {}))
        for one in errors
        if one["input"] is wrong
    ]
    expected = ", or ".join(dict.fromkeys(alternatives))
    return f"{got}; expected {expected}"


def as_typed(value: Any) -> str:
    """A value of a file or of Python as a shell would have it: [32, 64] as "32,64"."""
    if isinstance(value, list | tuple):
        return ",".join(map(as_typed, value))
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def keyed(
    model: type[Options], source: str, given: Mapping[str, Any], *, of_python: bool = False
) -> dict[str, Any]:
    """What a file, or a call `of_python`, gives by field: every spelling of an option is accepted.

    None leaves an option out. Raises UsageError for a key that is not known, with the nearest that
    is, for one that belongs to the command line, and for two names of one option.
    """
    fields: dict[str, str] = {}
    for field, declared in options_of(model).items():
        fields |= {_key(name): field for name in (field, *declared.names)}
    excluded = ("shell",) if of_python else ("shell", "call")
    known = [key for key, field in fields.items() if options_of(model)[field].scope not in excluded]
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = _key(str(name))
        if key in fields and key not in known:
            raise UsageError(f"{source}{name} is an option of the command line only")
        if key not in known:
            what, between = ("argument of", "_") if of_python else ("key in", "-")
            raise UnknownName(
                f"{what} {source.rstrip()}", name, [k.replace("_", between) for k in known]
            )
        if value is None:
            continue
        if fields[key] in found:
            raise UsageError(f"{source}{name} is given twice, under two names; name it once")
        found[fields[key]] = _plain(value)
    return found


def _key(name: str) -> str:
    return name.partition("/")[0].lstrip("-").replace("-", "_")


def _plain(value: Any) -> Any:
    """A value of numpy or torch, or a generator, as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple | Iterator):
        return [_plain(one) for one in value]
    return value


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
    field, declared = model.model_fields[name], options_of(model)[name]
    is_flag = field.annotation in (bool, bool | None)
    kind: Any = list[str] if declared.repeated else bool if is_flag else str
    required = field.is_required()
    shown = copy(declared.shown)
    if isinstance(shown, OptionInfo):
        shown.param_decls = declared.names
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, shown],
    )


def document(function: Callable[..., Any], model: type[Options]) -> None:
    """Adds a line for each option of the model to the docstring of a Python call."""
    lines = [
        f"    {name}: {one.shown.help}"
        for name, one in options_of(model).items()
        if one.scope != "shell" and name not in inspect.signature(function).parameters
    ]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
