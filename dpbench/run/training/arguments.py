"""The options of a training from all layers: those that are typed, above those of a file, a preset
or the run that is resumed."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench import architecture
from dpbench.architecture import make_importable
from dpbench.errors import UsageError
from dpbench.options.bridge import Given, Layer, file_layers, options_of, read
from dpbench.options.shared import ARCHITECTURE
from dpbench.options.train import TrainOptions
from dpbench.run import presets
from dpbench.specs.training import RESUME_LATEST


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """A training that is asked for."""

    options: TrainOptions
    command: Sequence[str]
    """The command line after "dpbench", or an equivalent one."""
    embedded: bool
    """Whether a Python program calls, whose signal handlers are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArguments:
    """The options typed for `dpbench train`, not read yet."""

    given: Given
    """The options that are not left at their defaults, by field."""
    embedded: bool = False
    """Whether a Python program calls, and there is no command line."""

    def read(self) -> TrainRequest:
        """Read and check the options of all layers.

        Raises UsageError, and StoreError for a run folder that is damaged.
        """
        layers = [*self._resumed(), *self._files(), Layer("", self.given)]
        arch = next((one.values["arch"] for one in layers[::-1] if "arch" in one.values), "")
        make_importable(str(arch))
        options = read(TrainOptions, *layers)
        architecture.check(options.arch)
        own = TrainOptions.model_construct(**{name: getattr(options, name) for name in self.given})
        command = ["train", *own.words()] if self.embedded else sys.argv[1:]
        return TrainRequest(options=options, command=command, embedded=self.embedded)

    def architecture(self) -> str:
        """The architecture that the command line, or else a file, names."""
        values = dict[str, Any]()
        for layer in (*self._files(), Layer("", self.given)):
            values.update(layer.values)
        return str(values.get("arch", ARCHITECTURE))

    def _files(self) -> Iterator[Layer]:
        for layer in file_layers(TrainOptions, self.given, presets.find_training):
            if layer.source.startswith("--preset") and "checkpoint" in layer.values:
                # Each machine has its own folder for temporary files.
                file = Path(tempfile.gettempdir()) / str(layer.values["checkpoint"])
                layer = Layer(layer.source, {**layer.values, "checkpoint": str(file)})
            yield layer

    def _resumed(self) -> Iterator[Layer]:
        """The options of the run that --resume names; nothing if it names no run."""
        resume = self.given.get("resume")
        if resume is None or resume == RESUME_LATEST:
            return
        from dpbench.run.training.resume import resumed_run

        run, _ = resumed_run(str(resume), Path(self.given.get("runs_dir", "runs")))
        if run is None:
            return
        stored = resumed_options(run.header.options)
        arch = str(stored.get("arch", ARCHITECTURE))
        if architecture.is_theirs(arch) and "arch" not in self.given:
            raise UsageError(
                f"--resume {resume}: that run uses --arch {arch}, whose code would be imported; "
                f"if you trust it, give --arch {shlex.quote(arch)} as well"
            )
        if "RANK" in os.environ:  # the launcher decides how many there are
            stored.pop("gpus", None)
        yield Layer(str(run.path), stored)


def resumed_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored options of a run that a resumption takes over.

    A run folder may come from another user, and must not name a file to overwrite or start a
    download: options of one start are left out.
    """
    declared = options_of(TrainOptions)
    return {
        name: value
        for name, value in stored.items()
        if value is not None and name in declared and declared[name].scope in ("work", "node")
    }
