"""One pydantic model per command: its command line, config file, Python call and help.

A field of a model is `name: type = option(default, "Help.", ...)`. `command` gives a function the
signature that typer needs, and `read_options` validates what was typed, above what a config file
and a preset have.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

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
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "at most {le:,.0f}",
    "literal_error": "{expected}",
    "too_long": "at most {max_length} of them",
}
"""What errors of pydantic expected, by their type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """How one field of a model is an option, or a positional argument."""

    help: str
    metavar: str | None
    panel: str | None = None
    """The heading of the option in help."""
    names: tuple[str, ...] = ()
    """The spellings on the command line, first the one that messages use; by default that of the
    field, or the metavar of an argument."""
    usual: str | None = None
    """What help shows as the default, if the command chooses it."""
    scope: Scope = "work"
    hidden: bool = False
    argument: bool = False
    repeated: bool = False
    """Whether it may be given more than once; a repeated argument is all words after the others."""


def option(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
    """Declares a field of a model as an option; `more` are fields of `Declared`."""
    field = Field(default)
    field.metadata.append(Declared(help=help, metavar=metavar, **more))
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
            if declared.argument and declared.repeated:
                arguments += value
            elif declared.argument:
                arguments[:0] = [] if value is None else [as_typed(value)]
            elif isinstance(value, bool):
                found += [on] if value else [off] if off else []
            elif value is not None:
                found += [on, as_typed(value)]
        return found + arguments


@functools.cache
def options_of(model: type[Options]) -> dict[str, Declared]:
    """The declared options of a model, by field."""
    found = {}
    for name, field in model.model_fields.items():
        (declared,) = (one for one in field.metadata if isinstance(one, Declared))
        usual = str(declared.metavar) if declared.argument else f"--{name.replace('_', '-')}"
        found[name] = replace(declared, names=declared.names or (usual,))
    return found


def option_name(model: type[Options], field: str) -> str:
    """The name of an option in messages."""
    return options_of(model)[field].names[0].partition("/")[0]


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
    elsewhere = ("shell",) if of_python else ("shell", "call")
    options = options_of(model)
    fields = {
        name.partition("/")[0].lstrip("-").replace("-", "_"): field
        for field in options
        for name in (field, *options[field].names)
    }
    known = [key for key, field in fields.items() if options[field].scope not in elsewhere]
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = str(name).lstrip("-").replace("-", "_")
        if key in fields and key not in known:
            raise UsageError(f"{source}{name} is an option of the command line only")
        if key not in known:
            what, between = ("argument of", "_") if of_python else ("key in", "-")
            raise UnknownName(
                f"{what} {source.rstrip(': ')}", name, [k.replace("_", between) for k in known]
            )
        if value is not None and fields[key] in found:
            raise UsageError(f"{source}{name} is given twice, under two names; name it once")
        if value is not None:
            found[fields[key]] = value
    return found


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
        rest_last = sorted(declared, key=lambda n: declared[n].argument and declared[n].repeated)
        parameters = [_parameter(model, name) for name in rest_last]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        del wrapper.__wrapped__  # typer would read the annotations of what is wrapped
        return wrapper

    return decorate


def _parameter(model: type[Options], name: str) -> inspect.Parameter:
    """An option as typer reads it from the signature of a command."""
    field, declared = model.model_fields[name], options_of(model)[name]
    is_flag, required = field.annotation in (bool, bool | None), field.is_required()
    kind: Any = list[str] if declared.repeated else bool if is_flag else str
    default: str | bool = declared.usual or False
    if not declared.usual and is_flag and "/" in declared.names[0]:
        default = "on" if field.default else "off"
    elif not declared.usual and not is_flag and not required and field.default not in (None, ()):
        default = as_typed(field.default)
    make = typer.Argument if declared.argument else functools.partial(typer.Option, *declared.names)
    shown = make(
        metavar=declared.metavar,
        help=declared.help,
        rich_help_panel=declared.panel,
        hidden=declared.hidden,
        show_default=default,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, shown],
    )


def document(function: Callable[..., Any], model: type[Options]) -> None:
    """Adds a line for each option of the model to the docstring of a Python call."""
    lines = [
        f"    {name}: {one.help}"
        for name, one in options_of(model).items()
        if one.scope != "shell" and name not in inspect.signature(function).parameters
    ]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
