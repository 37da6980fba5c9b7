"""Options of a training in a file, YAML or TOML, or in the run folder that keeps them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpbench.cli.train_options import TrainOptions
from dpbench.cli.values import shorten
from dpbench.errors import UnknownName, UsageError

Layer = dict[str, str | bool]
"""Options by the names of TrainOptions, as they would be typed."""

FLAGS = frozenset(field.name for field in fields(TrainOptions) if field.type == "bool")
LISTS = ("gpus", "shares")
TRUTH = {"true": True, "false": False}
LEFT_OUT = ("", "null", "~")
"""How YAML writes nothing, as in "max-norm:"."""
LARGEST_BYTES = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


def read(path: Path) -> Layer:
    """The options in a file; raises UsageError that names the file and the key."""
    parse = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}.get(path.suffix.lower())
    if parse is None:
        raise UsageError(f"--config {path}: expected a name that ends in .yaml, .yml or .toml")
    content = parse(path, _text_of(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected options as 'epochs: 5', got {_kind(content)}")
    layer: Layer = {}
    for key, value in content.items():
        name = _name(path, key)
        if name in layer:
            raise UsageError(f"{path}: {key} is there twice; name each option once")
        if value is not None:  # written as "max-norm:", it is left out
            layer[name] = _value(path, key, name, value)
    return layer


def stored(configuration: Mapping[str, str]) -> Layer:
    """The options of a run folder; raises UsageError for what `to_stored` did not write."""
    layer: Layer = {}
    for key, text in configuration.items():
        name = _name("run.json", key)
        layer[name] = TRUTH.get(text, False) if name in FLAGS else text
    return layer


def to_stored(options: TrainOptions) -> dict[str, str]:
    """Every option that has a value, by the name that it has on the command line."""
    return {
        _key(name): str(value).lower() if name in FLAGS else str(value)
        for name, value in _items(options)
        if value is not None
    }


def shown(options: TrainOptions) -> str:
    """All options as a YAML file that --config reads back."""
    import yaml

    content = {_key(name): _plain(value) for name, value in _items(options)}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _items(options: TrainOptions) -> list[tuple[str, str | bool | None]]:
    return [(field.name, getattr(options, field.name)) for field in fields(options)]


def _key(name: str) -> str:
    return name.replace("_", "-")


def _plain(value: str | bool | None) -> Any:
    """A number where the text is one that is written alike, so that it needs no quotes."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    number = float(value) if "." in value else int(value)
    return number if str(number) == value else value


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"--config {path}: more than 1 MiB; expected a file of options")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"--config {path}: expected text in UTF-8") from None


def _toml(path: Path, text: str) -> Any:
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
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if isinstance(key, str) and keys.count(key) > 1:
                    raise yaml.YAMLError(f"{key} is there twice; name each option once")
            return super().construct_mapping(node, deep)

    return Loader


def _name(where: Path | str, key: object) -> str:
    known = [_key(field.name) for field in fields(TrainOptions)]
    if not isinstance(key, str):
        raise UsageError(f"{where}: expected the name of an option, got {_kind(key)}")
    plain = key.replace("_", "-")
    if plain not in known:
        raise UnknownName(f"key in {where}:", key, known)
    return plain.replace("-", "_")


def _value(path: Path, key: str, name: str, value: Any) -> str | bool:
    typed: str | bool | None
    if name in FLAGS:
        expected, typed = "true or false", TRUTH.get(str(value).lower())
    elif name in LISTS:
        expected, typed = "a number, text or a list of them", _list(name, value)
    else:
        expected, typed = "a number or text", _scalar(value)
    if typed is None:
        raise UsageError(f"{path}: {key}: expected {expected}, got {_kind(value)}")
    return typed


def _scalar(value: Any) -> str | None:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def _list(name: str, value: Any) -> str | None:
    """As the command line has it: "0,1", and "0," for the one device 0."""
    if not isinstance(value, list):
        return _scalar(value)
    texts = [text for item in value if (text := _scalar(item)) is not None]
    if len(texts) < len(value):
        return None
    return f"{texts[0]}," if name == "gpus" and len(texts) == 1 else ",".join(texts)


def _kind(value: object) -> str:
    """What a value is; of lists and mappings not the content, which may be of any size."""
    if isinstance(value, (str, bool, int, float)):
        return shorten(str(value))
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else type(value).__name__


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
