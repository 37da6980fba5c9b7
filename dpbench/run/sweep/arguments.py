"""The options of a sweep: those that are typed, above those of a file, a preset, or the sweep that
is resumed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.data.user_code import code_in
from dpbench.errors import UsageError
from dpbench.run import presets
from dpbench.run.option_layers import (
    SOURCES,
    Layer,
    OptionLayers,
    as_config,
    file_layers,
    given_options,
    refuse_untrusted,
    words_of,
)
from dpbench.run.sweep.options import SweepOptions
from dpbench.specs.settings import Texts, settings_of
from dpbench.store import holds_sweep, load_header

if TYPE_CHECKING:
    import typer

    from dpbench.launch.nodes.node import NodeRequest
    from dpbench.run.sweep.checks import ParsedOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepArguments:
    """The options typed for `dpbench sweep`, and the layers below them."""

    layers: OptionLayers
    notes: tuple[str, ...]
    """Notes for the user."""

    @classmethod
    def of(cls, context: typer.Context, typed: Texts, *, launched: bool = False) -> SweepArguments:
        """Reads the preset and the file, or what the sweep to resume had from them.

        With `launched`, a launcher started this process, and it answers some of the options.
        Raises UsageError, and StoreError for a results folder that is damaged.
        """
        given, notes = given_options(context), list[str]()
        resumed = [*_resumed(context, typed, notes, launched=launched)]
        below = resumed or [*file_layers(SweepOptions, typed, presets.find)]
        layers = OptionLayers(command=SweepOptions, typed=typed, given=given, below=below)
        if typed["preset"] is not None and not resumed:
            notes.append(_preset_note(layers))
        return cls(layers=layers, notes=tuple(notes))

    def options(self) -> dict[str, Any]:
        """All options, and the command that would be typed without a file."""
        texts = self.layers.texts()
        if not self.layers.below:
            return texts
        return {**texts, "command": ["sweep", *words_of(SweepOptions, self.layers.chosen)]}

    def as_config(self) -> str:
        """All options as a YAML file that --config reads back."""
        return as_config(SweepOptions, self.layers.texts())

    def parsed(self, texts: Texts) -> tuple[ParsedOptions, NodeRequest | None, list[str]]:
        """Reads and checks the options; an error that comes from a layer names it.

        Raises UsageError.
        """
        from dpbench.architecture import make_importable
        from dpbench.run.sweep.checks import parse_sweep_options
        from dpbench.run.sweep.nodes import parse_nodes, require_one_architecture

        notes: list[str] = []
        make_importable(texts["arch"], texts["step"], texts["data"])
        options = self.layers.read(SweepOptions, texts, notes)
        with self.layers.naming_source():
            parsed = parse_sweep_options(options, notes)
            node_notes: list[str] = []
            nodes = parse_nodes(options, node_notes)
            if nodes is not None:
                require_one_architecture(parsed.options.arch)
        return parsed, nodes, node_notes


def _resumed(
    context: typer.Context, typed: Texts, notes: list[str], *, launched: bool
) -> Iterator[tuple[str, Layer]]:
    """The options of the sweep to resume, in place of those files: they may have changed since.

    Nothing where there is no such sweep, as on the nodes that keep no records. Raises UsageError
    for a preset or a file of --config that does not exist, and for what no sweep made.
    """
    sources = [f"--{name} {typed[name]}" for name in SOURCES[::-1] if typed[name] is not None]
    if not (sources and typed["resume"] and typed["name"]):
        return
    folder = Path(typed["results_dir"]) / typed["name"]
    if not holds_sweep(folder):
        return
    config, preset = typed["config"], typed["preset"]
    if preset is not None:
        presets.find(preset)
    if config is not None and not Path(config).exists():
        raise UsageError(
            f"--config {config}: there is no such file; leave it out, as --resume takes the "
            f"options with which the sweep in {folder} was started"
        )
    _, command = load_header(folder)
    from dpbench.run.sweep.preparation import RESUMABLE, remedy

    if command[:1] != (RESUMABLE,):
        raise UsageError(f"--resume: {folder}: {remedy(command, folder)}")
    declared, answered = settings_of(SweepOptions), set[str]()
    if launched:
        from dpbench.run.sweep.nodes import WORLD_OPTIONS

        answered = {*WORLD_OPTIONS, "gpus"}
    # A command with --help, which nobody stored, would print the help and end here with 0.
    with context.command.make_context(
        "dpbench sweep", [*command[1:]], help_option_names=[]
    ) as earlier:
        of_work = [name for name in given_options(earlier) if declared[name].scope != "call"]
        layer = {name: earlier.params[name] for name in of_work if name not in answered}
    refuse_untrusted(f"--resume: the sweep in {folder}", code_in(layer), given_options(context))
    notes.append(
        f"{' and '.join(sources)} {'are' if len(sources) > 1 else 'is'} not read: the options are "
        f"those with which the sweep in {folder} was started"
    )
    yield str(folder), layer


def _preset_note(layers: OptionLayers) -> str:
    """The options of a preset, the lowest layer, without those that a layer above it overrides."""
    (source, preset), *above = layers.below
    hidden = {*layers.given}.union(*(layer for _, layer in above))
    staying = {name: preset[name] for name in preset.keys() & layers.chosen.keys() - hidden}
    words = words_of(SweepOptions, staying)
    return f"{source}: {shlex.join(words) or 'nothing that is not given otherwise'}"
