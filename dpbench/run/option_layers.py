"""Options of a command from all the places that they come from.

The command line overrides the file of --config, the file overrides the preset, and the preset
overrides the defaults. What is resumed is a layer of its own, which the command adds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpbench.errors import UsageError
from dpbench.run.option_file import Layer, as_yaml, read_layer
from dpbench.specs.settings import PathName, Texts, from_texts, settings_of

O = TypeVar("O")  # noqa: E741
SOURCES = ("preset", "config")
"""Options that name a layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionLayers:
    """The options typed for a command, and the layers below them."""

    command: Any
    """The dataclass whose fields declare the options."""
    typed: Texts
    """All options, by the names of the command's parameters."""
    given: Collection[str]
    """Those that are not just at their defaults."""
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


def as_config(command: Any, texts: Texts) -> str:
    """All options that a file may have, as YAML that --config reads back."""
    options = {
        one.key: texts[name] for name, one in settings_of(command).items() if one.scope != "call"
    }
    return as_yaml({key: str(v) if isinstance(v, Path) else v for key, v in options.items()})


def given_options(context: Any) -> set[str]:
    """The options of a command that were typed, not just left at their defaults."""
    return {name for name in context.params if context.get_parameter_source(name).name != "DEFAULT"}


def untrusted_code(where: str, option: str, named: str) -> UsageError:
    """The error for code that stored results name and the command does not: the folder may come
    from somebody else."""
    return UsageError(
        f"{where} uses --{option} {named}, whose code would be imported; if you trust it, give "
        f"--{option} {shlex.quote(named)} as well"
    )
