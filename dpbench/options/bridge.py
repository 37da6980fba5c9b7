"""One pydantic model per command: its command line, config file, Python call and help.

A field of a model is `name: Annotated[type, OptionInfo("Help.", ...)] = default`. `command` gives a
function the signature that typer needs, `read` validates what was given in several layers, so that
an error names the layer it comes from, and `describe` documents a Python call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dpbench.errors import UnknownName, UsageError
from dpbench.messages import printable, say
from dpbench.options.types import NOTES, Choice

M = TypeVar("M", bound="Options")
Given = Mapping[str, Any]
"""Options that are not left at their defaults, by the names of their fields."""
Scope = Literal["work", "node", "start", "call"]
"""Where else the value of an option may come from: "work" is what is measured or trained; "node"
may differ between the nodes of a sweep; "start" belongs to one start of a training, which a
resumption does not take over; "call" belongs to one call of the command, so that no file has it."""
LONGEST_SHOWN = 60
"""Characters of a wrong value that an error shows."""
LARGEST_FILE = 1 << 16
"""Most bytes of a config file; all options take far less."""
PYTHON = "the call"


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """How one field of a model appears on the command line and in help."""

    help: str
    metavar: str | None = None
    panel: str | None = None
    """The heading under which help shows it."""
    names: tuple[str, ...] = ()
    """Names on the command line; by default the one of the field."""
    also: tuple[str, ...] = ()
    """Further names."""
    default: str | None = None
    """Help text for a default that the command chooses itself."""
    scope: Scope = "work"
    in_python: bool = True
    """Whether Python calls have it."""
    hidden: bool = False
    argument: bool = False
    """Whether it is a positional argument."""
    repeated: bool = False
    """Whether it may be given more than once."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Any:
        return {**handler(core), "description": self.help}


class Options(BaseModel):
    """Base of the models; values are checked when one is made, and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    def dump(self, *, all_values: bool = False) -> dict[str, Any]:
        """The options that a file may have, as a file has them; all, or those that were given."""
        kept = {name for name, one in options_of(type(self)).items() if one.scope != "call"}
        return self.model_dump(mode="json", include=kept, exclude_unset=not all_values)

    def words(self) -> list[str]:
        """The words to type for the options that were given."""
        declared = options_of(type(self))
        found: list[str] = []
        for name, value in self.model_dump(mode="json", exclude_unset=True).items():
            on, _, off = option_names(declared[name], name)[0].partition("/")
            if isinstance(value, bool):
                found += [on] if value else [off] if off else []
            elif declared[name].argument:
                found.append(str(value))
            elif value is not None:
                found += [on, as_typed(value)]
        return found


class Layer(NamedTuple):
    """Some options, and where they come from, as errors name it; "" for the command line."""

    source: str
    values: Given


@functools.cache
def options_of(model: type[Options]) -> dict[str, OptionInfo]:
    """The declared options of a model, by field."""
    return {name: _declared(name, field) for name, field in model.model_fields.items()}


def _declared(name: str, field: FieldInfo) -> OptionInfo:
    found = [one for one in field.metadata if isinstance(one, OptionInfo)]
    assert found, f"{name} declares no OptionInfo"
    return found[-1]


def option_names(option: OptionInfo, field: str) -> tuple[str, ...]:
    """The names on the command line, the one that messages use first."""
    own = option.names or (f"--{field.replace('_', '-')}",)
    return (*own, *option.also)


def option_name(model: type[Options], field: str) -> str:
    """The name of an option in messages."""
    option = options_of(model)[field]
    if option.argument:
        return option.metavar or field.upper()
    return option_names(option, field)[0].partition("/")[0]


def read(model: type[M], *layers: Layer) -> M:
    """Validates the options of all layers; later ones override earlier ones.

    Says notes for the user. Raises UsageError, which names the option, what was given, what was
    expected, and the layer unless it is the command line.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        _validate(model, layer.values, dict.fromkeys(layer.values, layer.source), [], crossed=False)
        values |= layer.values
        sources |= dict.fromkeys(layer.values, layer.source)
    notes: list[str] = []
    found = _validate(model, values, sources, notes)
    say(*notes)
    return found


def _validate(
    model: type[M],
    values: Given,
    sources: Mapping[str, str],
    notes: list[str],
    *,
    crossed: bool = True,
) -> M:
    """Validates values; without `crossed`, whether they go together is left to a later layer."""
    try:
        return model.model_validate(values, context={NOTES: notes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0])
        message = _message(model, field, first, values.get(field))
        raise UsageError(_from(sources.get(field), message)) from None
    except UsageError as error:
        if not crossed:
            return model.model_construct()
        source = next(filter(None, (sources.get(name) for name in error.about)), None)
        raise UsageError(_from(source, str(error)), about=error.about) from None


def read_value(name: str, kind: Any, value: Any) -> Any:
    """Validates one value that no model holds; raises UsageError that begins with `name`."""
    notes: list[str] = []
    try:
        found = TypeAdapter(kind).validate_python(value, context={NOTES: notes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{name}: got {_shortened(first['input'])}; {_what(first)}") from None
    say(*notes)
    return found


def _from(source: str | None, message: str) -> str:
    return f"{source}: {message}" if source else message


def _message(model: type[Options], field: str, error: Mapping[str, Any], given: Any) -> str:
    """One line: the option, what it got and what it expected."""
    if error["type"] == "missing":
        return f"{option_name(model, field)} is missing"
    is_item = len(error["loc"]) > 1 and isinstance(given, str) and given != error["input"]
    whole = f" in {given}" if is_item else ""
    name = option_name(model, field)
    shown = f"{_shortened(error['input'])}{printable(whole, LONGEST_SHOWN)}"
    return f"{name}: got {shown}; {_what(error)}"


def _shortened(value: object) -> str:
    return printable(repr(value), LONGEST_SHOWN)


def _what(error: Mapping[str, Any]) -> str:
    """What was expected, in lower case and without what pydantic puts around it."""
    what = str(error["msg"]).removeprefix("Value error, ")
    what = what.replace("Input should be", "expected").partition(", unable")[0]
    return what[:1].lower() + what[1:]


def as_typed(value: Any) -> str:
    """A value of a file or of Python as a shell would have it: [32, 64] as "32,64"."""
    if isinstance(value, list | tuple):
        return ",".join(map(as_typed, value))
    return str(value)


def keyed(model: type[Options], source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a file or a call gives, by field: every spelling of an option is accepted.

    None leaves an option out. Raises UsageError for a key that is not known, with the nearest that
    is, for one that belongs to the command line, and for two names of one option.
    """
    of_python = source == PYTHON
    known: dict[str, str] = {}
    for field, option in options_of(model).items():
        if option.in_python if of_python else option.scope != "call":
            for name in (f"--{field}", *option_names(option, field)):
                if name.startswith("--"):
                    known[_key(name, of_python=of_python)] = field
    found: dict[str, Any] = {}
    for key, value in given.items():
        field = known.get(_key(str(key), of_python=of_python), "")
        if not field:
            typed = [n for f, o in options_of(model).items() for n in (f, *option_names(o, f))]
            if any(_key(str(key), of_python=False) == _key(n, of_python=False) for n in typed):
                raise UsageError(f"{source}: {key} is an option of the command line only")
            raise UnknownName(f"{'argument' if of_python else 'key'} in {source}:", key, known)
        if value is None:
            continue
        if field in found:
            raise UsageError(f"{source}: {key} is given twice, under two names; name it once")
        # A generator is read once; layers are validated more than once.
        found[field] = [*value] if isinstance(value, Iterator) else value
    return found


def _key(name: str, *, of_python: bool) -> str:
    plain = name.partition("/")[0].removeprefix("--")
    return plain.replace("-", "_") if of_python else plain.replace("_", "-")


def read_file(path: Path) -> dict[str, Any]:
    """The options in a TOML or YAML file; values of YAML stay the text that they are.

    Raises UsageError that names the file.
    """
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".yaml", ".yml"):
        raise UsageError(f"--config {path}: expected a name that ends in .yaml, .yml or .toml")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {path}: expected text in UTF-8") from None
    if len(data) > LARGEST_FILE:
        raise UsageError(f"--config {path}: more than 64 KiB; expected a file of options")
    content = _parse(path, text, is_toml=suffix == ".toml")
    if content in (None, ""):
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected options, as in 'batch-size: 32'")
    return {key: None if value in ("", "null", "~") else value for key, value in content.items()}


def _parse(path: Path, text: str, *, is_toml: bool) -> Any:
    import tomllib

    import yaml

    try:
        # YAML itself would make 8 of 010, false of off and 90 of 1:30.
        return tomllib.loads(text) if is_toml else yaml.load(text, yaml.BaseLoader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        kind = "TOML" if is_toml else "YAML"
        raise UsageError(f"{path} is not {kind}: {' '.join(str(error).split())}") from None


def file_layers(
    model: type[Options], given: Given, find_preset: Callable[[str], Path]
) -> list[Layer]:
    """The layers of --preset and --config, the lower one first; raises UsageError."""
    layers = []
    if (preset := given.get("preset")) is not None:
        source = f"--preset {preset}"
        layers.append(Layer(source, keyed(model, source, read_file(find_preset(preset)))))
    if (config := given.get("config")) is not None:
        source = str(config)
        layers.append(Layer(source, keyed(model, source, read_file(Path(config)))))
    return layers


def as_config(options: Options) -> str:
    """All options as a YAML file that --config reads back."""
    import yaml

    declared = options_of(type(options))
    content = {
        option_names(declared[name], name)[0].partition("/")[0].removeprefix("--"): value
        for name, value in options.dump(all_values=True).items()
    }
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


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

        parameters = [_parameter(model, name) for name in model.model_fields]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        del wrapper.__wrapped__  # typer would read the annotations of what is wrapped
        wrapper.model = model  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parameter(model: type[Options], name: str) -> inspect.Parameter:
    field, option = model.model_fields[name], options_of(model)[name]
    shown = option.default or _shown(field.get_default(), option_names(option, name)[0])
    kind: Any = list[str] if option.repeated else bool if _is_flag(field) else str
    if option.argument:
        how = typer.Argument(metavar=option.metavar, help=option.help, show_default=shown)
    else:
        how = typer.Option(
            *option_names(option, name),
            metavar=option.metavar,
            help=_with_values(field, option),
            rich_help_panel=option.panel,
            hidden=option.hidden,
            show_default=shown,
        )
    required = option.argument and field.is_required()
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, how],
    )


def _is_flag(field: FieldInfo) -> bool:
    return bool in _alternatives(field.annotation)


def _shown(default: Any, names: str) -> str | bool:
    """The default in help; False for one that goes without saying."""
    if isinstance(default, bool):
        on, _, off = names.partition("/")
        return (on if default else off).removeprefix("--") if off else False
    return False if default is None or repr(default) == "PydanticUndefined" else as_typed(default)


def _with_values(field: FieldInfo, option: OptionInfo) -> str:
    """Help of an option, with the names that it takes unless help or metavar have them."""
    kinds = [one for one in _metadata(field) if isinstance(one, Choice)]
    names = kinds[0].offered if kinds else ()
    if all(name in f"{option.help} {option.metavar}" for name in names):
        return option.help
    return f"{option.help} Names: {', '.join(names)}."


def _metadata(field: FieldInfo) -> list[Any]:
    """The metadata of a field and of what its type is made of."""
    found: list[Any] = [*field.metadata]
    waiting: list[Any] = [field.annotation]
    while waiting:
        kind = waiting.pop()
        if get_origin(kind) is Annotated:
            found += kind.__metadata__
        waiting += [one for one in get_args(kind) if one is not Ellipsis]
    return found


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def describe(
    function: Callable[..., Any], model: type[Options], flags: Mapping[str, str], end: str = ""
) -> None:
    """Gives a Python call the signature of a model and documents its arguments.

    `flags` are more arguments, off by default, with their help; `end` follows the arguments.
    """
    parameters, lines = [], []
    for name, field in model.model_fields.items():
        option = options_of(model)[name]
        if not option.in_python:
            continue
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.get_default(),
                annotation=_accepted(field.annotation),
            )
        )
        usual = f" Default: {option.default}." if option.default else ""
        lines.append(f"    {name}: {option.help}{usual}")
    for name, text in flags.items():
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=False, annotation=bool))
        lines.append(f"    {name}: {text}")
    result = function.__annotations__["return"]
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=result
    )
    text = inspect.getdoc(function) or ""
    function.__doc__ = f"{text}\n\nArgs:\n" + "\n".join(lines) + f"\n{end}"


def _accepted(hint: Any) -> Any:
    """The type of an argument without the kinds: a list is any sequence, and may be text."""
    found: Any = None
    for one in _alternatives(hint):
        if get_origin(one) is Annotated:
            one = get_args(one)[0]
        if get_origin(one) is tuple:
            one = Sequence[Any]
        found = one if found is None else found | one
    return found if hint is bool else found | str


def with_help(option: OptionInfo, help: str, **changes: Any) -> OptionInfo:
    """The same option of another command, with other words."""
    return replace(option, help=help, **changes)
