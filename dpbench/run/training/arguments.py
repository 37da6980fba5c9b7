"""The options of a training: those that are typed, above those of a file or a preset."""

from __future__ import annotations

from dataclasses import dataclass

from dpbench import architecture
from dpbench.architecture import make_importable
from dpbench.options.bridge import Given, Layer, file_layers, read
from dpbench.options.train import TrainOptions
from dpbench.run import presets


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """A training that is asked for."""

    options: TrainOptions
    embedded: bool = False
    """Whether a Python program calls, whose signal handlers are kept."""

    @classmethod
    def read(cls, given: Given, *, embedded: bool = False) -> TrainRequest:
        """Read and check the options of all layers; `given` are those that are not left at their
        defaults, by field. Raises UsageError."""
        layers = [*file_layers(TrainOptions, given, presets.find_training), Layer("", given)]
        arch = next((one.values["arch"] for one in layers[::-1] if "arch" in one.values), "")
        make_importable(str(arch))
        options = read(TrainOptions, *layers)
        architecture.check_exists(options.arch)
        return cls(options=options, embedded=embedded)

    @property
    def command(self) -> list[str]:
        """The words after "dpbench" for these options."""
        return ["train", *self.options.words()]
