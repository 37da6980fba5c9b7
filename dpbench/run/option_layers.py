"""Options of a command from all the places that they come from.

The command line overrides the file of --config, the file overrides the preset, and the preset
overrides the defaults. What is resumed is a layer of its own, which the command adds. Values in a
file, in YAML or TOML, are read as if they had been typed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from dpbench.errors import UnknownName, UsageError
from dpbench.specs.settings import (
    Flag,
    PathName,
    RowRules,
    Setting,
    Switch,
    Texts,
    from_texts,
    settings_of,
)
from dpbench.values import shorten

O = TypeVar("O")  # noqa: E741
Layer = dict[str, str | bool]
"""Options by the names of the command's parameters, as they would be typed."""
SOURCES = ("preset", "config")
"""Options that name a layer."""
TRUTH = {"true": True, "false": False}
LEFT_OUT = ("", "null", "~")
"""Spellings of nothing in YAML, as in "max-norm:"."""
LARGEST_BYTES = 1 << 16
"""Most text in a file, which YAML reads at some 100 KiB a second; all options take two."""
MOST_RULES = 1000
"""Most rules of one option."""
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionLayers:
    """The options typed for a command, and the layers below them."""

    command: Any
    """The dataclass whose fields declare the options."""
    typed: Texts
    """All options, by the names of the command's parameters."""
    given: Collection[str]
    """The options that are not just at their defaults."""
    below: Sequence[tuple[str, Layer]]
    """Each layer with its source, as errors name it; later ones override earlier ones."""

    @property
    def chosen(self) -> Layer:
        """The options of all layers and those that are typed, without defaults."""
        top = {name: self.typed[name] for name in self.given if name not in SOURCES}
        return merged(self.command, [*(layer for _, layer in self.below), top])

    def texts(self) -> dict[str, Any]:
        """Every option as it would be typed, or at its default."""
        declared = settings_of(self.command)
        return {
            name: Path(value)
            if value is not None and isinstance(declared[name].kind, PathName)
            else value
            for name, value in {**self.typed, **self.chosen}.items()
        }

    def read(self, options: type[O], texts: Texts, notes: list[str]) -> O:
        """Reads the options; an error names the layer of the wrong one. Raises UsageError."""
        return from_texts(options, texts, notes, self.naming_source)

    @contextmanager
    def naming_source(self, *options: str) -> Iterator[None]:
        """Inside, a UsageError names the layer that one of the options comes from.

        Without `options`, they are those that the error is about.
        """
        try:
            yield
        except UsageError as error:
            sources = map(self._source_of, options or error.about)
            if (source := next(filter(None, sources), None)) is None:
                raise
            raise UsageError(f"{source}: {error}") from None

    def _source_of(self, option: str) -> str | None:
        """The layer that an option comes from; None for what is typed or left out."""
        if option in self.given or option not in self.chosen:
            return None
        return next(source for source, layer in reversed(self.below) if option in layer)


def file_layers(
    command: Any, typed: Texts, find_preset: Callable[[str], Path]
) -> Iterator[tuple[str, Layer]]:
    """The layers of --preset and --config, each with its source; raises UsageError."""
    if (preset := typed["preset"]) is not None:
        yield f"--preset {preset}", read_layer(find_preset(preset), command)
    if (config := typed["config"]) is not None:
        yield str(config), read_layer(Path(config), command)


def merged(command: Any, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of all layers: later ones override earlier ones, and an option also overrides
    the one that it stands for."""
    pairs = [{name, one.instead_of} for name, one in settings_of(command).items() if one.instead_of]
    result: dict[str, Any] = {}
    for layer in layers:
        hidden = {name for pair in pairs if pair & layer.keys() for name in pair}
        result = {name: result[name] for name in result if name not in hidden} | {**layer}
    return result


def words_of(command: Any, options: Mapping[str, Any]) -> list[str]:
    """The words to type for options, which are as they would be typed."""
    return [
        word
        for name, one in settings_of(command).items()
        if options.get(name) is not None
        for word in one.words(options[name])
    ]


def has_option(words: Sequence[str], option: str) -> bool:
    """Whether words on a command line give the option, as "--name value" or "--name=value"."""
    return any(word == option or word.startswith(f"{option}=") for word in words)


def as_config(command: Any, texts: Texts) -> str:
    """All options that a file may have, as YAML that --config reads back."""
    import yaml

    content = {
        one.key: _plain(texts[name])
        for name, one in settings_of(command).items()
        if one.scope != "call"
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def given_options(context: Any) -> set[str]:
    """The options of a command that were typed, not just left at their defaults."""
    return {name for name in context.params if context.get_parameter_source(name).name != "DEFAULT"}


def refuse_untrusted(where: str, code: Mapping[str, str], given: Collection[str]) -> None:
    """Raises UsageError for an option among `code`, which stored results give and which names code
    of the user's, unless it was typed too."""
    for option, named in code.items():
        if option not in given:
            raise untrusted_code(where, option, named)


def untrusted_code(where: str, option: str, named: str) -> UsageError:
    """The error for code that stored results name and the command does not: the folder may come
    from somebody else."""
    return UsageError(
        f"{where} uses --{option} {named}, whose code would be imported; if you trust it, give "
        f"--{option} {shlex.quote(named)} as well"
    )


def read_layer(path: Path, command: Any) -> Layer:
    """The options in a file, which the fields of the dataclass `command` declare.

    Raises UsageError that names the file and the key.
    """
    content = content_of(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected options as 'batch-size: 32', got {_described(content)}")
    layer: Layer = {}
    for key, value in content.items():
        if not isinstance(key, str):
            raise UsageError(f"{path}: expected the name of an option, got {_described(key)}")
        name = option_named(path, key, command)
        if name in layer:
            raise UsageError(f"{path}: {key} is there twice; name each option once")
        if value is not None:  # written as "max-norm:", it is left out
            layer[name] = _as_typed(path, key, settings_of(command)[name], value)
    return layer


def option_named(where: Path | str, key: str, command: Any) -> str:
    """The field of the option that a key means; raises UsageError for one that no file has."""
    declared = settings_of(command)
    names = {spelling: name for name, one in declared.items() for spelling in one.spellings}
    known = [spelling for spelling, name in names.items() if declared[name].scope != "call"]
    plain = key.replace("_", "-")
    if plain in names and plain not in known:
        raise UsageError(f"{where}: {key} belongs to one call and to no file; type --{plain}")
    if plain not in known:
        raise UnknownName(f"key in {where}:", key, known)
    return names[plain]


def _as_typed(path: Path, key: str, setting: Setting, value: Any) -> str | bool:
    """A value of a file as it would be typed; raises UsageError that names the file and the key."""
    if isinstance(setting.kind, RowRules) and isinstance(value, list):
        return _rules_as_typed(f"{path}: {setting.key}", value)
    one = _switch if isinstance(setting.kind, Switch) else _scalar
    typed: str | bool | None
    if isinstance(setting.kind, Flag):
        expected, typed = "true or false", TRUTH.get(str(value).lower())
    elif setting.may_be_list:
        expected, typed = "a number, text or a list of them", _listed(setting, value, one)
    else:
        expected, typed = "yes or no" if one is _switch else "a number or text", one(value)
    if typed is None:
        raise UsageError(f"{path}: {key}: expected {expected}, got {_described(value)}")
    return typed


def content_of(path: Path) -> Any:
    """The content of a file; in YAML all values are text. Raises UsageError."""
    parse = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}.get(path.suffix.lower())
    if parse is None:
        raise UsageError(f"--config {path}: expected a name that ends in .yaml, .yml or .toml")
    return parse(path, _text_of(path))


def _plain(value: Any) -> Any:
    """A number where the text is one that is written alike, so that it needs no quotes; the text
    of a path."""
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    number = float(value) if "." in value else int(value)
    return number if str(number) == value else value


def _scalar(value: Any) -> str | None:
    """A number or text as it would be typed; None for anything else."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def _switch(value: Any) -> str | None:
    """A number or text as it would be typed, "yes" for true and "no" for false; None for anything
    else."""
    text = str(value).lower() if isinstance(value, bool) else _scalar(value)
    return None if text is None else {"true": "yes", "false": "no"}.get(text, text)


def _listed(setting: Setting, value: Any, one: Callable[[Any], str | None]) -> str | None:
    """A list as on the command line: "0,1"; and of ids "0," means the one device 0."""
    if not isinstance(value, list):
        return one(value)
    texts = [text for item in value if (text := one(item)) is not None]
    if len(texts) < len(value):
        return None
    return f"{texts[0]}," if setting.is_ids and len(texts) == 1 else ",".join(texts)


def _rules_as_typed(key: str, tables: list[Any]) -> str:
    """Tables of conditions as the option has them; a list of values is a rule for each of them.

    Raises UsageError, which begins with `key`.
    """
    return ",".join(rule for table in tables for rule in _rules_of(key, table))


def _rules_of(key: str, table: Any) -> list[str]:
    if not isinstance(table, Mapping) or not table:
        raise UsageError(f"{key}: expected a table of conditions in each, as 'group-size = 4'")
    values = {field: _values(key, field, value) for field, value in table.items()}
    if prod(map(len, values.values())) > MOST_RULES:
        raise UsageError(f"{key}: expected at most {MOST_RULES:,} combinations of values")
    return [
        " ".join(f"{field}={value}" for field, value in zip(values, chosen, strict=True))
        for chosen in product(*values.values())
    ]


def _values(key: str, field: Any, value: Any) -> list[str]:
    texts = [_switch(one) for one in (value if isinstance(value, list) else [value])]
    if not texts or None in texts:
        raise UsageError(
            f"{key}: {shorten(str(field))}: expected a value or a list of them, got "
            f"{'an empty list' if value == [] else type(value).__name__}"
        )
    words = [text for text in texts if text is not None]
    for word in words:
        taken = " " if field == "architecture" else " ,="
        if not word or {*word} & {*taken} or not isinstance(field, str):
            raise UsageError(f"{key}: {shorten(str(field))}: {shorten(word)} is not a value")
    return words


def _described(value: object) -> str:
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
