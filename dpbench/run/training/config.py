"""Options of a training in a file, YAML or TOML, or in the run folder that keeps them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpbench.errors import UnknownName
from dpbench.run import presets
from dpbench.run.option_file import TRUTH, Layer, as_yaml, names_of, read_layer, value_as_typed
from dpbench.run.training.options import TrainOptions
from dpbench.settings import Flag, Texts, settings_of
from dpbench.values import known_name

OPTIONS = settings_of(TrainOptions)
NAMES = tuple(field.name for field in fields(TrainOptions))
FLAGS = names_of(TrainOptions, Flag)
LISTS = ("gpus", "shares")
OF_ONE_START = ("max_steps", "checkpoint", "download")
"""Options that a resumption does not take over. A run folder may come from somebody else, and must
not name a file to overwrite, or have anything fetched."""


def config_layer(path: Path) -> Layer:
    """The options in a file; raises UsageError that names the file and the key."""

    def value_of(key: str, name: str, value: Any) -> str | bool:
        may_be_list = name in LISTS
        return value_as_typed(f"{path}: {key}", OPTIONS[name], value, may_be_list=may_be_list)

    return read_layer(path, "epochs: 5", lambda key: _name(path, key), value_of)


def preset_layer(name: str | None) -> Layer:
    """The options of a preset, none where it is None; raises UsageError for an unknown name.

    Its --checkpoint lies in the folder for temporary files, which each machine has elsewhere.
    """
    if name is None:
        return {}
    path = presets.training_path(known_name("--preset", name, presets.training_names()))
    layer = config_layer(path)
    if isinstance(checkpoint := layer.get("checkpoint"), str):
        layer["checkpoint"] = str(Path(tempfile.gettempdir()) / checkpoint)
    return layer


def stored_layer(configuration: Mapping[str, str]) -> Layer:
    """The options of a run folder; raises UsageError for what `stored_options` did not write."""
    layer: Layer = {}
    for key, text in configuration.items():
        name = _name("run.json", key)
        if name in OF_ONE_START:
            continue
        layer[name] = TRUTH.get(text, False) if name in FLAGS else text
    return layer


def stored_options(texts: Texts) -> dict[str, str]:
    """Every option that a resumption takes over, by the name that it has on the command line."""
    return {
        _key(name): str(value).lower() if name in FLAGS else str(value)
        for name in NAMES
        if (value := texts[name]) is not None and name not in OF_ONE_START
    }


def as_config(texts: Texts) -> str:
    """All options as a YAML file that --config reads back."""
    return as_yaml({_key(name): texts[name] for name in NAMES})


def _key(name: str) -> str:
    return name.replace("_", "-")


def _name(where: Path | str, key: str) -> str:
    known = [_key(name) for name in NAMES]
    plain = key.replace("_", "-")
    if plain not in known:
        raise UnknownName(f"key in {where}:", key, known)
    return plain.replace("-", "_")
