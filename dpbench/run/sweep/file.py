"""Options of a sweep from all the places that they come from.

The command line goes before the file of --config, the file before the preset, and that before the
defaults.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.data.user_code import user_code
from dpbench.errors import UnknownName, UsageError
from dpbench.run import presets
from dpbench.run.option_file import (
    Layer,
    as_yaml,
    is_given,
    merged,
    read_layer,
    switch,
    value_as_typed,
)
from dpbench.run.sweep.options import SweepOptions
from dpbench.run.sweep.rules import as_text
from dpbench.specs.settings import Texts, from_texts, settings_of
from dpbench.store import holds_sweep, load_header
from dpbench.values import known_name

if TYPE_CHECKING:
    import typer

    from dpbench.run.sweep.checks import ParsedOptions
    from dpbench.run.sweep.nodes import Nodes

SOURCES = ("config", "preset")
OF_ONE_CALL = (
    *SOURCES,
    *("show_config", "name", "results_dir", "resume", "retry", "dry_run", "json_rows", "quiet"),
    "columns",
    *("node_rank", "token_file", "synthetic"),
)
"""Options that no file has."""
PATHS = ("data_dir",)
RULES = ("exclude", "include")
"""Tables of conditions on rows."""
EXCLUSIVE = (("backends", "sync_backend"),)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepArguments:
    """The options typed for `dpbench sweep`, and the layers below them."""

    typed: Mapping[str, Any]
    """All options, by the names of the command's parameters."""
    given: Layer
    """Those that are not just at their defaults."""
    layers: Sequence[tuple[str, Layer]]
    """Each with its source; the later ones go before."""
    parameters: Sequence[Any]
    """The command's, as click has them."""
    notes: tuple[str, ...]
    """Notes for the user."""

    @classmethod
    def of(cls, context: typer.Context, typed: Mapping[str, Any]) -> SweepArguments:
        """Reads the preset and the file, or what the sweep to resume had from them.

        Raises UsageError, and StoreError for a results folder that is damaged.
        """
        parameters = [one for one in context.command.params if one.name in typed]
        notes: list[str] = []
        layers = [*_earlier(context, typed, notes)] or [*_layers(typed, parameters)]
        given = _given(context, parameters)
        if typed["preset"] is not None and not notes:
            hidden = {*given, *(name for _, other in layers[1:] for name in other)}
            notes.append(_told(parameters, *layers[0], hidden))
        return cls(
            typed=typed, given=given, layers=layers, parameters=parameters, notes=tuple(notes)
        )

    def options(self) -> dict[str, Any]:
        """All options, and the command that would be typed without a file."""
        options = self._options()
        command = ["sweep", *_words(self.parameters, self._chosen)]
        return {**options, "command": command} if self.layers else options

    def parsed(self, texts: Texts) -> tuple[ParsedOptions, Nodes | None, list[str]]:
        """Reads and checks the options; an error that comes from a layer names it.

        Raises UsageError.
        """
        from dpbench.architecture import make_importable
        from dpbench.run.sweep.checks import parse
        from dpbench.run.sweep.nodes import parse_nodes, require_one_architecture

        notes: list[str] = []
        make_importable(texts["arch"], texts["step"], texts["data"])
        options = from_texts(SweepOptions, texts, notes, self._blaming)
        try:
            parsed = parse(options, notes)
            told: list[str] = []
            nodes = parse_nodes(options, told)
            if nodes is not None:
                require_one_architecture(parsed.architectures)
            return parsed, nodes, told
        except UsageError as error:
            sources = (self._sources.get(name) for name in error.about)
            raise _named(error, next(filter(None, sources), None)) from None

    @contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            raise _named(error, self._sources.get(name)) from None

    @property
    def _sources(self) -> dict[str, str]:
        """The layer that each option comes from; none for what is typed or left out."""
        found = {name: source for source, layer in self.layers for name in layer}
        return {name: source for name, source in found.items() if name not in self.given}

    def shown(self) -> str:
        """All options as a YAML file that --config reads back."""
        options = self._options()
        return as_yaml(
            {
                _key(one): str(value) if isinstance(value, Path) else value
                for one in self.parameters
                if one.name not in OF_ONE_CALL
                for value in [options[one.name]]
            }
        )

    def _options(self) -> dict[str, Any]:
        return {
            name: Path(value) if name in PATHS and value is not None else value
            for name, value in {**self.typed, **self._chosen}.items()
        }

    @property
    def _chosen(self) -> Layer:
        """The options of all layers and those that are typed, without defaults."""
        return merged([*(layer for _, layer in self.layers), self.given], EXCLUSIVE)


def _layers(typed: Mapping[str, Any], parameters: Sequence[Any]) -> Iterator[tuple[str, Layer]]:
    if (preset := typed["preset"]) is not None:
        path = presets.path_of(known_name("--preset", preset, presets.names()))
        yield f"--preset {preset}", _read(path, parameters)
    if (config := typed["config"]) is not None:
        yield str(config), _read(Path(config), parameters)


def _earlier(
    context: typer.Context, typed: Mapping[str, Any], notes: list[str]
) -> Iterator[tuple[str, Layer]]:
    """The options of the sweep to resume, in place of those files: they may have changed since.

    Nothing where there is no such sweep, as on the nodes that keep no records.
    """
    sources = [f"--{name} {typed[name]}" for name in SOURCES if typed[name] is not None]
    if not (sources and typed["resume"] and typed["name"]):
        return
    folder = Path(typed["results_dir"]) / typed["name"]
    if not holds_sweep(folder):
        return
    spec, command = load_header(folder)
    for option, named in user_code(spec).items():
        if not is_given(context, option):
            raise UsageError(
                f"--resume: the sweep in {folder} is of --{option} {named}, whose code would be "
                f"imported; if you trust it, give --{option} {shlex.quote(named)} as well"
            )
    with context.command.make_context("dpbench sweep", [*command[1:]]) as earlier:
        layer = _given(earlier, context.command.params)
    notes.append(f"{' and '.join(sources)}: as it was when the sweep in {folder} was started")
    yield str(folder), {name: layer[name] for name in layer if name not in OF_ONE_CALL}


def _told(parameters: Sequence[Any], source: str, layer: Layer, hidden: set[str]) -> str:
    """The options of a layer, without those `hidden` by the layers above it."""
    words = _words(parameters, {name: layer[name] for name in layer if name not in hidden})
    return f"{source}: {shlex.join(words) or 'nothing that is not given otherwise'}"


def _words(parameters: Sequence[Any], options: Mapping[str, Any]) -> list[str]:
    """How the options are typed."""
    return [
        word
        for one in parameters
        if one.name in options and options[one.name] is not None
        for word in _typed_as(one, options[one.name])
    ]


def _given(context: Any, parameters: Sequence[Any]) -> Layer:
    """The options that are not just at their defaults, but for those that name files."""
    names = [one.name for one in parameters if one.name not in SOURCES]
    return {name: context.params[name] for name in names if is_given(context, name)}


def _named(error: UsageError, source: str | None) -> UsageError:
    return error if source is None else UsageError(f"{source}: {error}")


def _read(path: Path, parameters: Sequence[Any]) -> Layer:
    names = {
        _plain(option): one for one in parameters for option in one.opts if option.startswith("--")
    }

    def name_of(key: str) -> str:
        known = [name for name, one in names.items() if one.name not in OF_ONE_CALL]
        plain = key.replace("_", "-")
        if plain in names and plain not in known:
            raise UsageError(f"{path}: {key} belongs to one call and to no file; type --{plain}")
        if plain not in known:
            raise UnknownName(f"key in {path}:", key, known)
        return str(names[plain].name)

    def value_of(key: str, name: str, value: Any) -> str | bool:
        if name in RULES and isinstance(value, list):
            try:
                return as_text(name, value, switch)
            except UsageError as error:
                raise UsageError(f"{path}: {error}") from None
        setting = settings_of(SweepOptions)[name]
        return value_as_typed(f"{path}: {key}", setting, value, may_be_list=True)

    return read_layer(path, "batch-sizes: 32", name_of, value_of)


def _typed_as(parameter: Any, value: Any) -> list[str]:
    if not parameter.is_flag:
        return [parameter.opts[0], str(value)]
    options = parameter.opts if value else parameter.secondary_opts
    return [*options[:1]]


def _key(parameter: Any) -> str:
    return _plain(parameter.opts[0])


def _plain(option: str) -> str:
    return option.removeprefix("--")
