"""Options of a training in a file, YAML or TOML, or in the run folder that keeps them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpbench.errors import UnknownName, UsageError
from dpbench.run import presets
from dpbench.run.option_file import (
    TRUTH,
    Layer,
    as_yaml,
    kind,
    listed,
    names_of,
    read_layer,
    scalar,
    switch,
)
from dpbench.run.training.options import TrainOptions
from dpbench.settings import Flag, Switch, Texts
from dpbench.values import known_name

NAMES = tuple(field.name for field in fields(TrainOptions))
FLAGS = names_of(TrainOptions, Flag)
SWITCHES = names_of(TrainOptions, Switch)
LISTS = ("gpus", "shares")
OF_ONE_START = ("max_steps", "checkpoint", "download")
"""Options that a resumption does not take over. A run folder may come from somebody else, and must
not name a file to overwrite, or have anything fetched."""


def read(path: Path) -> Layer:
    """The options in a file; raises UsageError that names the file and the key."""
    return read_layer(
        path,
        "epochs: 5",
        lambda key: _name(path, key),
        lambda key, name, value: _value(path, key, name, value),
    )


def preset_layer(name: str | None) -> Layer:
    """The options of a preset, none where it is None; raises UsageError for an unknown name.

    Its --checkpoint lies in the folder for temporary files, which each machine has elsewhere.
    """
    if name is None:
        return {}
    path = presets.training_path(known_name("--preset", name, presets.training_names()))
    layer = read(path)
    if isinstance(checkpoint := layer.get("checkpoint"), str):
        layer["checkpoint"] = str(Path(tempfile.gettempdir()) / checkpoint)
    return layer


def stored(configuration: Mapping[str, str]) -> Layer:
    """The options of a run folder; raises UsageError for what `to_stored` did not write."""
    layer: Layer = {}
    for key, text in configuration.items():
        name = _name("run.json", key)
        if name in OF_ONE_START:
            continue
        layer[name] = TRUTH.get(text, False) if name in FLAGS else text
    return layer


def to_stored(texts: Texts) -> dict[str, str]:
    """Every option that a resumption takes over, by the name that it has on the command line."""
    return {
        _key(name): str(value).lower() if name in FLAGS else str(value)
        for name, value in _items(texts)
        if value is not None and name not in OF_ONE_START
    }


def shown(texts: Texts) -> str:
    """All options as a YAML file that --config reads back."""
    return as_yaml({_key(name): value for name, value in _items(texts)})


def _items(texts: Texts) -> list[tuple[str, str | bool | None]]:
    return [(name, texts[name]) for name in NAMES]


def _key(name: str) -> str:
    return name.replace("_", "-")


def _name(where: Path | str, key: object) -> str:
    known = [_key(name) for name in NAMES]
    if not isinstance(key, str):
        raise UsageError(f"{where}: expected the name of an option, got {kind(key)}")
    plain = key.replace("_", "-")
    if plain not in known:
        raise UnknownName(f"key in {where}:", key, known)
    return plain.replace("-", "_")


def _value(path: Path, key: str, name: str, value: Any) -> str | bool:
    typed: str | bool | None
    if name in FLAGS:
        expected, typed = "true or false", TRUTH.get(str(value).lower())
    elif name in SWITCHES:
        expected, typed = "yes or no", switch(value)
    elif name in LISTS:
        expected, typed = "a number, text or a list of them", _list(name, value)
    else:
        expected, typed = "a number or text", scalar(value)
    if typed is None:
        raise UsageError(f"{path}: {key}: expected {expected}, got {kind(value)}")
    return typed


def _list(name: str, value: Any) -> str | None:
    if not isinstance(value, list):
        return scalar(value)
    texts = [text for item in value if (text := scalar(item)) is not None]
    return listed(texts, of_ids=name == "gpus") if len(texts) == len(value) else None
