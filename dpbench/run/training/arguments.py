"""The options of a training: those that are typed, above those of a file, a preset, or the run that
is resumed; and whether they go together."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpbench import architecture
from dpbench.architecture import make_importable, with_input_shape
from dpbench.data.user_code import NamedCode, code_in
from dpbench.errors import UsageError, about
from dpbench.run import presets
from dpbench.run.option_layers import (
    TRUTH,
    Layer,
    OptionLayers,
    as_config,
    file_layers,
    option_named,
    refuse_untrusted,
)
from dpbench.run.shared_options import STAGED_BACKEND, require_setting
from dpbench.run.training.command import TrainCommand
from dpbench.run.training.options import TrainOptions
from dpbench.specs.settings import AUTO, Flag, Setting, Texts, settings_of
from dpbench.specs.training import RESUME_LATEST
from dpbench.specs.traits import IMPLEMENTATIONS

KEPT = {name: one for name, one in settings_of(TrainOptions).items() if one.scope != "start"}
"""Options that a resumption takes over. A run folder may come from somebody else, and must not name
a file to overwrite, or have anything fetched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """A training that is asked for, and where its files go."""

    options: TrainOptions
    texts: Texts
    """The options as they would be typed."""
    notes: tuple[str, ...]
    """Notes for the user."""
    name: str | None
    runs_dir: Path
    resume: str | None
    command: Sequence[str]
    """The command line after "dpbench", or an equivalent one."""
    embedded: bool
    """Asked for by somebody's own program, whose signals are not touched."""

    def as_config(self) -> str:
        """All options as a YAML file that --config reads back."""
        return as_config(TrainCommand, self.texts)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArguments:
    """The options typed for `dpbench train`, not parsed yet."""

    typed: Texts
    """All options, by the names of the command's parameters."""
    given: Collection[str]
    """The options that are not just at their defaults."""
    command: Sequence[str] = field(default_factory=lambda: sys.argv[1:])
    embedded: bool = False

    def read(self) -> TrainRequest:
        """Reads and checks the options of all places; an error that comes from a layer names it.

        Raises UsageError, and StoreError for a run folder that is damaged.
        """
        layers = self._layers([*self._resumed(), *self._files()])
        texts, notes = layers.texts(), list[str]()
        make_importable(texts["arch"])
        options = layers.read(TrainOptions, texts, notes)
        with layers.naming_source():
            check_values(options, notes)
            check(options)
        return TrainRequest(
            options=options,
            texts=texts,
            notes=tuple(notes),
            name=texts["name"],
            runs_dir=texts["runs_dir"],
            resume=texts["resume"],
            command=self.command,
            embedded=self.embedded,
        )

    def named_code(self) -> NamedCode:
        """The code that the command line, or else a file, names with --arch and --data.

        Raises UsageError.
        """
        texts = self._layers([*self._files()]).texts()
        arch, shape, data = str(texts["arch"]), texts["input_shape"], texts["data"]
        return NamedCode(
            architecture=arch if shape is None else with_input_shape(arch, str(shape)),
            dataset=None if data is None else str(data),
        )

    def _layers(self, below: Sequence[tuple[str, Layer]]) -> OptionLayers:
        return OptionLayers(command=TrainCommand, typed=self.typed, given=self.given, below=below)

    def _files(self) -> Iterator[tuple[str, Layer]]:
        """The checkpoint of a preset is in the folder for temporary files, which each machine has
        elsewhere."""
        for source, layer in file_layers(TrainCommand, self.typed, presets.find_training):
            if source.startswith("--preset") and "checkpoint" in layer:
                layer["checkpoint"] = str(Path(tempfile.gettempdir()) / str(layer["checkpoint"]))
            yield source, layer

    def _resumed(self) -> Iterator[tuple[str, Layer]]:
        """The options of the run that --resume names; nothing where it names no run."""
        resume = self.typed["resume"]
        if resume is None or resume == RESUME_LATEST:
            return
        from dpbench.run.training.place import resumed_run

        named = resumed_run(resume, Path(self.typed["runs_dir"]))
        if named is None or named.run is None:
            return
        layer = stored_layer(named.run.header.configuration)
        refuse_untrusted(f"--resume {resume}: that run", code_in(layer), self.given)
        if "RANK" in os.environ:  # the launcher says how many there are
            layer.pop("gpus", None)
        yield str(named.run.path), layer


def stored_layer(configuration: Mapping[str, str]) -> Layer:
    """The options of a run folder; raises UsageError for what `stored_options` did not write."""
    layer: Layer = {}
    for key, text in configuration.items():
        name = option_named("run.json", key, TrainCommand)
        if name in KEPT:
            layer[name] = TRUTH.get(text, False) if _is_flag(KEPT[name]) else text
    return layer


def stored_options(texts: Texts) -> dict[str, str]:
    """Every option that a resumption takes over, by the name that it has on the command line."""
    return {
        one.key: str(texts[name]).lower() if _is_flag(one) else str(texts[name])
        for name, one in KEPT.items()
        if texts[name] is not None
    }


def _is_flag(setting: Setting) -> bool:
    return isinstance(setting.kind, Flag)


def check_values(options: TrainOptions, notes: list[str]) -> None:
    """Raises UsageError for an architecture that there is not, and for two names of one option."""
    with about("arch", "input_shape"):
        architecture.check(options.architecture)
    _check_two_backends(options, notes)
    _check_two_evaluations(options)


def check(options: TrainOptions) -> None:
    """Raises UsageError for options that contradict each other, or that nothing would heed.

    What depends on the devices is in `training.job.refuse_unusable`.
    """
    _check_backend(options)
    for name, one in settings_of(TrainOptions).items():
        if (value := getattr(options, name)) is not None:
            asked = f"{one.option} {one.text(value)}"
            require_setting(name, asked, (options.implementation,), several=False)
    _check_warmup(options)
    _check_shares(options)
    with about("checkpoint"):
        _check_checkpoint(options.run.checkpoint)
    with about("download", "data", "data_dir"):
        _check_download(options)


def _check_two_backends(options: TrainOptions, notes: list[str]) -> None:
    if options.backend is not AUTO and options.sync_backend is not None:
        raise UsageError(
            f"got --backend {options.backend} and --sync-backend {options.sync_backend}, which "
            "are two names of one option; give one of them",
            about=("backend", "sync_backend"),
        )
    for option, asked in (("--backend", options.backend), ("--sync-backend", options.sync_backend)):
        if asked == STAGED_BACKEND:
            notes.append(
                f"{option} {STAGED_BACKEND} means shm: ranks reduce through the host's memory"
            )


def _check_two_evaluations(options: TrainOptions) -> None:
    if options.no_eval and options.evaluate not in (None, "off"):
        raise UsageError(
            f"got --evaluate {options.evaluate} and --no-eval, which means --evaluate off; give "
            "one of them",
            about=("evaluate", "no_eval"),
        )


def _check_backend(options: TrainOptions) -> None:
    only = IMPLEMENTATIONS[options.implementation].backend
    option, asked = "--backend", options.backend
    if options.sync_backend is not None:
        option, asked = "--sync-backend", options.sync_backend
    if asked is not AUTO and only is not None:
        raise UsageError(
            f"{option} {asked}: {options.implementation} has no choice of backend; leave {option} "
            "out, or take an implementation that has one, such as ddp",
            about=("backend", "sync_backend", "implementation"),
        )


def _check_warmup(options: TrainOptions) -> None:
    if options.lr_warmup and options.lr_scaling == "none":
        raise UsageError(
            f"--lr-warmup {options.lr_warmup}: the rate rises from --lr to the scaled one, and "
            "with --lr-scaling none they are the same; add --lr-scaling linear or sqrt",
            about=("lr_warmup", "lr_scaling"),
        )


def _check_shares(options: TrainOptions) -> None:
    if options.shares and options.balance != "equal":
        raise UsageError(
            f"got --shares and --balance {options.balance}, which sets the shares; give one of "
            "them",
            about=("shares", "balance"),
        )


def _check_checkpoint(path: str | None) -> None:
    """Checks the file now, as the first checkpoint is only written after an epoch."""
    if path is None:
        return
    if Path(path).is_dir():
        raise UsageError(f"--checkpoint {path} is a folder; expected the name of a file")
    if not Path(path).parent.is_dir():
        raise UsageError(f"--checkpoint {path}: there is no folder {Path(path).parent}; make it")


def _check_download(options: TrainOptions) -> None:
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
