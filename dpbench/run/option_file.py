"""A YAML or TOML file of options, whose values are read as if they had been typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpbench.errors import UsageError
from dpbench.specs.settings import Flag, Setting, Switch, settings_of
from dpbench.values import shorten

Layer = dict[str, str | bool]
"""Options by the names of the command's parameters, as they would be typed."""

TRUTH = {"true": True, "false": False}
LEFT_OUT = ("", "null", "~")
"""How YAML writes nothing, as in "max-norm:"."""
LARGEST_BYTES = 1 << 16
"""Most text in a file, which YAML reads at some 100 KiB a second; all options take two."""
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


def is_given(context: Any, option: str) -> bool:
    """Whether an option of a command was typed, not just left at its default."""
    source = context.get_parameter_source(option)  # None for an option that the command has not
    return source is not None and source.name != "DEFAULT"


def read_layer(
    path: Path,
    example: str,
    name_of: Callable[[str], str],
    value_of: Callable[[str, str, Any], str | bool],
) -> Layer:
    """The options in a file, by `name_of` a key and `value_of` a key, its name and its value.

    Raises UsageError that names the file and the key.
    """
    content = content_of(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected options as '{example}', got {kind(content)}")
    layer: Layer = {}
    for key, value in content.items():
        if not isinstance(key, str):
            raise UsageError(f"{path}: expected the name of an option, got {kind(key)}")
        name = name_of(key)
        if name in layer:
            raise UsageError(f"{path}: {key} is there twice; name each option once")
        if value is not None:  # written as "max-norm:", it is left out
            layer[name] = value_of(key, name, value)
    return layer


def value_as_typed(where: str, setting: Setting, value: Any, *, may_be_list: bool) -> str | bool:
    """A value of a file as it would be typed; raises UsageError, which begins with `where`."""
    one = switch if isinstance(setting.kind, Switch) else scalar
    typed: str | bool | None
    if isinstance(setting.kind, Flag):
        expected, typed = "true or false", TRUTH.get(str(value).lower())
    elif may_be_list:
        expected, typed = "a number, text or a list of them", _listed(setting, value, one)
    else:
        expected, typed = "yes or no" if one is switch else "a number or text", one(value)
    if typed is None:
        raise UsageError(f"{where}: expected {expected}, got {kind(value)}")
    return typed


def names_of(options: Any, kind: type) -> frozenset[str]:
    """The options of one kind, by the fields of the dataclass that declares them."""
    declared = settings_of(options)
    return frozenset(name for name, one in declared.items() if isinstance(one.kind, kind))


def content_of(path: Path) -> Any:
    """The content of a file; in YAML all values are text. Raises UsageError."""
    parse = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}.get(path.suffix.lower())
    if parse is None:
        raise UsageError(f"--config {path}: expected a name that ends in .yaml, .yml or .toml")
    return parse(path, _text_of(path))


def merged(layers: Sequence[Layer], exclusive: Sequence[Sequence[str]]) -> Layer:
    """The later ones go before. One of some `exclusive` options takes the place of the others."""
    result: Layer = {}
    for layer in layers:
        for group in exclusive:
            if any(name in layer for name in group):
                result = {name: result[name] for name in result if name not in group}
        result |= layer
    return result


def as_yaml(options: dict[str, Any]) -> str:
    """Options as a file that reads back as the same."""
    import yaml

    content = {key: plain(value) for key, value in options.items()}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def plain(value: Any) -> Any:
    """A number where the text is one that is written alike, so that it needs no quotes."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    number = float(value) if "." in value else int(value)
    return number if str(number) == value else value


def scalar(value: Any) -> str | None:
    """A number or text as it would be typed; None for anything else."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def switch(value: Any) -> str | None:
    """The same, with "yes" for true and "no" for false as well."""
    text = str(value).lower() if isinstance(value, bool) else scalar(value)
    return None if text is None else {"true": "yes", "false": "no"}.get(text, text)


def _listed(setting: Setting, value: Any, one: Callable[[Any], str | None]) -> str | None:
    """A list as on the command line: "0,1"; and of ids "0," means the one device 0."""
    if not isinstance(value, list):
        return one(value)
    texts = [text for item in value if (text := one(item)) is not None]
    if len(texts) < len(value):
        return None
    return f"{texts[0]}," if setting.is_ids and len(texts) == 1 else ",".join(texts)


def kind(value: object) -> str:
    """Description of a value; for lists and mappings without the content, which may be of any
    size."""
    if isinstance(value, (str, bool, int, float)):
        return shorten(str(value))
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else type(value).__name__


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"--config {path}: more than 64 KiB; expected a file of options")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"--config {path}: expected text in UTF-8") from None


def _toml(path: Path, text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {_one_line(error)}") from None


def _yaml(path: Path, text: str) -> Any:
    """Values stay the text that they are, to be read as on the command line: YAML itself would
    make 8 of 010, false of off and 90 of 1:30. Nothing in the file makes an object or runs."""
    import yaml

    try:
        content = yaml.load(text, _unique_keys(yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path} is not YAML: {_one_line(error)}") from None
    if not isinstance(content, dict):
        return None if content in LEFT_OUT else content
    return {key: None if value in LEFT_OUT else value for key, value in content.items()}


def _unique_keys(base: Any) -> Any:
    """A loader to which a key that is there twice is an error; YAML says so, PyYAML takes one."""
    import yaml

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            known: set[str] = set()
            for key, _ in node.value:
                if isinstance(key.value, str) and key.value in known:
                    raise yaml.YAMLError(f"{key.value} is there twice; name each option once")
                known.add(str(key.value))
            return super().construct_mapping(node, deep)

    return Loader


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
