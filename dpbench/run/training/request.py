"""What was asked for, from all the places that options come from, and whether it goes together.

The command line goes before the file of --config, the file before the preset, the preset before
the run that is resumed, and that before the defaults.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dpbench import architecture
from dpbench.architecture import is_theirs, make_importable, with_input_shape
from dpbench.data.user_code import NamedCode
from dpbench.errors import UnknownName, UsageError
from dpbench.run import presets
from dpbench.run.option_file import (
    TRUTH,
    Layer,
    as_yaml,
    merged,
    names_of,
    read_layer,
    value_as_typed,
)
from dpbench.run.shared_options import STAGED_BACKEND
from dpbench.run.training.options import TrainOptions
from dpbench.specs.settings import AUTO, Flag, Texts, from_texts, settings_of
from dpbench.specs.traits import IMPLEMENTATIONS
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


LATEST = "auto"
"""The value of --resume that means the last checkpoint."""
EXCLUSIVE = (("backend", "sync_backend"), ("evaluate", "no_eval"), ("balance", "shares"))
"""One of them, where it is given, takes the place of the others as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """A training that is asked for, and where its files go."""

    options: TrainOptions
    texts: Texts
    """The same as they would be typed."""
    notes: tuple[str, ...]
    """Notes for the user."""
    name: str | None
    runs_dir: Path
    resume: str | None
    command: Sequence[str]
    """The command line after "dpbench", or an equivalent one."""
    embedded: bool
    """Asked for by somebody's own program, whose signals are not touched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArguments:
    """The typed options, not parsed yet."""

    typed: Mapping[str, Any]
    """All options, by the names of the command's parameters."""
    given: Collection[str]
    """Those that are not just at their defaults."""
    command: Sequence[str] = field(default_factory=lambda: sys.argv[1:])
    embedded: bool = False

    def read(self) -> TrainRequest:
        """Reads and checks the options of all places.

        Raises UsageError, and StoreError for a run folder that is damaged.
        """
        typed = self.typed
        texts, notes = self._texts(), list[str]()
        options = _options(texts, typed["config"], notes)
        check(options)
        return TrainRequest(
            options=options,
            texts=texts,
            notes=tuple(notes),
            name=typed["name"],
            runs_dir=typed["runs_dir"],
            resume=typed["resume"],
            command=self.command,
            embedded=self.embedded,
        )

    def named_code(self) -> NamedCode:
        """What the command line, or else the file of --config, says for --arch and --data.

        Raises UsageError.
        """
        config = self.typed["config"]
        below = preset_layer(self.typed["preset"])
        below |= {} if config is None else config_layer(config)
        own = {name: self.typed[name] for name in ("arch", "input_shape", "data")}
        said = own | below | {name: own[name] for name in own if name in self.given}
        arch, shape, data = str(said["arch"]), said["input_shape"], said["data"]
        return NamedCode(
            architecture=arch if shape is None else with_input_shape(arch, str(shape)),
            dataset=None if data is None else str(data),
        )

    def _texts(self) -> Texts:
        own = {name: self.typed[name] for name in NAMES}
        _parse(own, [])  # what is typed wrong is no fault of a file
        config, resume, runs_dir = (self.typed[name] for name in ("config", "resume", "runs_dir"))
        layers = (
            _of_earlier(resume, runs_dir, self.given),
            preset_layer(self.typed["preset"]),
            {} if config is None else config_layer(config),
            {name: own[name] for name in own if name in self.given},
        )
        return own | merged(layers, EXCLUSIVE)


def _options(texts: Texts, config: Path | None, notes: list[str]) -> TrainOptions:
    try:
        return _parse(texts, notes)
    except UsageError as error:
        if config is None:
            raise
        raise UsageError(f"{config}: {error}") from None


def _parse(texts: Texts, notes: list[str]) -> TrainOptions:
    make_importable(texts["arch"])
    options = from_texts(TrainOptions, texts, notes)
    check_values(options, notes)
    return options


def _of_earlier(resume: str | None, runs_dir: Path, given: Collection[str]) -> Layer:
    """The options of the run that --resume names; none where it names no run."""
    if resume is None or resume == LATEST:
        return {}
    from dpbench.run.training.place import target

    named = target(resume, runs_dir)
    if named is None or named.run is None:
        return {}
    arch = named.run.header.spec.workload.architecture
    if is_theirs(arch) and "arch" not in given:
        raise UsageError(
            f"--resume {resume}: that run is of --arch {arch}, whose code would be imported; if "
            f"you trust it, give --arch {shlex.quote(arch)} as well"
        )
    options = stored_layer(named.run.header.configuration)
    if "RANK" in os.environ:  # the launcher says how many there are
        options.pop("gpus", None)
    return options


def check_values(options: TrainOptions, notes: list[str]) -> None:
    """Raises UsageError for an architecture that there is not, and for two names of one option."""
    architecture.check(options.architecture)
    _two_backends(options, notes)
    _two_evaluations(options)


def check(options: TrainOptions) -> None:
    """Raises UsageError for options that contradict each other, or that nothing would heed.

    What depends on the devices is in `training.job.refuse_unusable`.
    """
    for part in (_backend, _own_settings, _warmup, _shares, _checkpoint, _download):
        part(options)


def _two_backends(options: TrainOptions, notes: list[str]) -> None:
    if options.backend is not AUTO and options.sync_backend is not None:
        raise UsageError(
            f"got --backend {options.backend} and --sync-backend {options.sync_backend}, which "
            "are two names of one option; give one of them"
        )
    for option, asked in (("--backend", options.backend), ("--sync-backend", options.sync_backend)):
        if asked == STAGED_BACKEND:
            notes.append(
                f"{option} {STAGED_BACKEND} means shm: ranks reduce through the host's memory"
            )


def _two_evaluations(options: TrainOptions) -> None:
    if options.no_eval and options.evaluate not in (None, "off"):
        raise UsageError(
            f"got --evaluate {options.evaluate} and --no-eval, which means --evaluate off; give "
            "one of them"
        )


def _backend(options: TrainOptions) -> None:
    only = IMPLEMENTATIONS[options.implementation].backend
    if options.process_backend is not AUTO and only is not None:
        raise UsageError(
            f"--backend {options.process_backend}: {options.implementation} has no choice of "
            "backend; leave --backend out, or take an implementation that has one, such as ddp"
        )


def _own_settings(options: TrainOptions) -> None:
    """Settings that only some implementations have."""
    traits = IMPLEMENTATIONS[options.implementation]
    for name, declared in settings_of(TrainOptions).items():
        value = getattr(options, name)
        if value is None or traits.has_setting(name):
            continue
        having = [one for one, others in IMPLEMENTATIONS.items() if others.has_setting(name)]
        remedy = having[0] if len(having) == 1 else "one of them"
        raise UsageError(
            f"{declared.option} {value:g}: it is an option of {', '.join(having)}, but "
            f"--implementation is {options.implementation}; take {remedy}, or leave it out"
        )


def _warmup(options: TrainOptions) -> None:
    if options.lr_warmup and options.lr_scaling == "none":
        raise UsageError(
            f"--lr-warmup {options.lr_warmup}: the rate rises from --lr to the scaled one, and "
            "with --lr-scaling none they are the same; add --lr-scaling linear or sqrt"
        )


def _shares(options: TrainOptions) -> None:
    if options.shares and options.balance != "equal":
        raise UsageError(
            f"got --shares and --balance {options.balance}, which sets the shares; give one of them"
        )


def _checkpoint(options: TrainOptions) -> None:
    """Now, as the first checkpoint is written when an epoch has been trained."""
    named = options.run.checkpoint
    if named is None:
        return
    if Path(named).is_dir():
        raise UsageError(f"--checkpoint {named} is a folder; expected the name of a file")
    if not Path(named).parent.is_dir():
        raise UsageError(f"--checkpoint {named}: there is no folder {Path(named).parent}; make it")


def _download(options: TrainOptions) -> None:
    if not options.download:
        return
    if options.data is not AUTO and options.data != "mnist":
        raise UsageError(
            f"--download fetches MNIST, but --data is {options.data}; leave it out, or take "
            "--data mnist"
        )
    if options.data is AUTO or options.data_dir is None:
        missing = "--data mnist" if options.data is AUTO else "--data-dir data"
        raise UsageError(
            "--download needs --data mnist, and --data-dir with the folder to download to; add "
            f"{missing}"
        )
