"""Reads the options of a command from what was typed or called with, a config file and a preset."""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from dpbench.errors import UsageError, near_path, unknown_name
from dpbench.messages import escaped, say
from dpbench.options.model import OptionError, Options, options_of

if TYPE_CHECKING:
    from dpbench.options.sweep import SweepOptions
    from dpbench.specs.command_line import CommandLine

AnyOptions = TypeVar("AnyOptions", bound=Options)
PRESETS = Path(__file__).with_name("presets")
"""Folder of the presets; the first line of each says what it is for."""
MAX_SHOWN = 60
"""Characters of a wrong value that an error shows."""
EXPECTED_BY_ERROR = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "a valid boolean, true or false",
    "path": "a name",
    "string": "a name",
    "byte": "a size with its unit, such as 4B or 25MiB",
    "tuple": "a list, such as 0,1",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length} of them",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "at most {le:,.0f}",
    "multiple_of": "a multiple of {multiple_of:g} bytes",
    "literal_error": "{expected}",
}
"""What errors of pydantic expected, by their type or its first word."""


def read_options(
    model: type[AnyOptions], given: Mapping[str, Any], call: str | None = None
) -> AnyOptions:
    """Validate the options that are given, above those of --config, above those of --preset.

    `given` is what was typed, by field; or the arguments of a Python `call` such as
    "dpbench.sweep", where every name of an option is accepted, and None leaves it out.

    Says what a preset asks for. Raises UsageError that names the option, what was given, what was
    expected, and the file or preset that has it.
    """
    own = {**given} if call is None else _by_field(model, f"{call}: ", given, is_call=True)
    config = own.pop("config", None)
    layers = {"": own}  # by the source that an error names; the first one that has an option wins
    if config is not None:
        source = f"{config}: "
        layers[source] = _by_field(model, source, read_file(Path(config)))
        if "config" in layers[source]:
            raise UsageError(f"{source}config: a file cannot name another one; leave it out")
    preset = ChainMap(*layers.values()).get("preset")
    if preset is not None:
        source = f"--preset {preset}: "
        layers[source] = _by_field(model, source, read_file(preset_file(model, preset)))
        say(f"{source}{shlex.join(model(**layers[source]).command('').words)}")
    try:
        return model.model_validate({**ChainMap(*layers.values())})
    except OptionError as error:
        field, problem, name = error.field, error.problem, error.name
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        problem = f": {_problem(error)}"
        name = options_of(model)[field].name if call is None else field
    source = next((source for source, content in layers.items() if field in content), "")
    raise OptionError(field, problem, f"{source}{name}")


def short_command(options: SweepOptions) -> CommandLine:
    """The command that measures the same in a new folder, with the preset in place of what it
    gives."""
    command = options.command("sweep").again(name=None, resume=None, preset=options.preset)
    if options.preset is None:
        return command
    model = type(options)
    asked = model(**_by_field(model, "", read_file(preset_file(model, options.preset))))
    fields = asked.model_fields_set
    same = [name for name in fields if getattr(asked, name) == getattr(options, name)]
    return command.again(**dict.fromkeys(same))


def preset_file(model: type[Options], name: str) -> Path:
    """The file of a preset: NAME-gpus.toml if there is one and this machine has GPUs. Raises
    UsageError for a name that the model does not have."""
    if name not in model.presets:
        raise unknown_name("--preset", name, model.presets)
    on_gpus = PRESETS / f"{name}-gpus.toml"
    if on_gpus.exists():
        import torch

        if torch.cuda.device_count() > 0:
            return on_gpus
    return PRESETS / f"{name}.toml"


def read_value(name: str, kind: Any, value: Any) -> Any:
    """Validate one value that no model holds; raises UsageError that begins with `name`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"{name}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    """What the first wrong value was and what was expected, by all alternatives of its type."""
    errors = error.errors(include_url=False)
    wrong = errors[0]["input"]
    got = f"got {escaped(repr(wrong), MAX_SHOWN)}"
    if errors[0]["type"] == "value_error":
        return f"{got}; {errors[0]['ctx']['error']}"
    of_value = (error for error in errors if error["input"] is wrong)
    alternatives = dict.fromkeys(map(_expected, of_value))
    return f"{got}; expected {', or '.join(alternatives)}"


def _expected(error: ErrorDetails) -> str:
    """What an error of pydantic expected, in its own words if we have none."""
    kind = error["type"]
    words = EXPECTED_BY_ERROR.get(kind) or EXPECTED_BY_ERROR.get(kind.partition("_")[0])
    return (words or error["msg"]).format(**error.get("ctx", {}))


def _by_field(
    model: type[Options], source: str, given: Mapping[str, Any], *, is_call: bool = False
) -> dict[str, Any]:
    """What a file, or a call of Python, gives by field: every name of an option is accepted.

    None leaves an option out. Raises UsageError for a key that is not known, with the nearest that
    is, for one that belongs to the command line, and for two names of one option.
    """
    options = options_of(model)
    fields = {
        name.lstrip("-").replace("-", "_"): field
        for field, info in options.items()
        for name in (f"--{field}", *info.names)
        if name.startswith("--")
    }
    by_field: dict[str, Any] = {}
    for name, value in given.items():
        key = str(name).lstrip("-").replace("-", "_")
        if key not in fields:
            known = [field for field, info in options.items() if not info.printed]
            known = known if is_call else [field.replace("_", "-") for field in known]
            what = "argument of" if is_call else "key in"
            raise unknown_name(f"{what} {source.rstrip(': ')}", name, known)
        field = fields[key]
        if options[field].printed:
            raise UsageError(f"{source}{name} is an option of the command line only")
        if value is not None and field in by_field:
            raise UsageError(f"{source}{name} is given twice, under two names; name it once")
        if value is not None:
            by_field[field] = value
    return by_field


def read_file(path: Path) -> dict[str, Any]:
    """The options in a TOML or YAML file; values of YAML stay the text that they are, but for its
    words for nothing, which are None.

    Raises UsageError that names the file.
    """
    import tomllib

    import yaml

    kind = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}.get(path.suffix.lower())
    option = f"--config {path}"
    if kind is None:
        raise UsageError(f"{option}: expected a name that ends in .yaml, .yml or .toml")
    try:
        text = path.read_text(encoding="utf-8")
        # YAML itself would make 8 of 010, false of off and 90 of 1:30.
        content = tomllib.loads(text) if kind == "TOML" else yaml.load(text, yaml.BaseLoader)
    except OSError as error:
        raise UsageError(f"{option}: {error.strerror}{near_path(path)}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{path} is not {kind}: {' '.join(str(error).split())}") from None
    if content in (None, ""):
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected options, as in 'batch-size: 32'")
    nothing = ("", "null", "~") if kind == "YAML" else ()
    return {key: None if value in nothing else value for key, value in content.items()}
