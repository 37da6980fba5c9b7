"""The sweep that `check` and `calibrate` measure: some options of `dpbench sweep`, the rest at its
defaults."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from dpbench.architecture import make_importable, split_names
from dpbench.errors import StoreError, UsageError
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.run.gate.options import PlaceOptions, RepeatedOptions
from dpbench.run.results import new_folder, results_folder
from dpbench.run.sweep.checks import ParsedOptions, parse_sweep_options
from dpbench.run.sweep.measuring import Measurement
from dpbench.run.sweep.options import SweepOptions
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import machine_for
from dpbench.specs import SweepSpec
from dpbench.specs.settings import Texts, defaults_as_typed, from_texts, settings_of

NOT_MEASURED = {"phases": "0", "gradient_steps": "0"}
"""Nothing here reads them, so no time is spent on them."""


@dataclass(frozen=True, kw_only=True)
class MeasuredFolder(PlaceOptions):
    """The folder of the measurements and their data, and how much is printed meanwhile."""

    def folder(self, command: str) -> Path:
        """A folder that does not exist yet; raises StoreError if one of that --name does."""
        folder = results_folder(self.results_dir, self.name, otherwise=command)
        return new_folder(folder, named=self.name is not None, require_free=_require_absent)

    def measurement(self, spec: SweepSpec, folder: Path) -> Measurement:
        return Measurement(
            spec=spec,
            folder=folder,
            command=sys.argv[1:],
            data_dir=self.data_dir,
            quiet=self.quiet,
            synthetic=self.synthetic,
        )


def _require_absent(folder: Path) -> None:
    if folder.exists():
        raise StoreError(f"{folder} exists already; choose another --name")


def parse_sweep(texts: Texts) -> ParsedOptions:
    """Checks the options that were typed, under the names that `dpbench sweep` has for them."""
    notes: list[str] = []
    make_importable(texts["arch"], texts.get("step"), texts.get("data"))
    if len(split_names(texts["arch"])) > 1:
        raise UsageError(
            f"--arch {texts['arch']}: this command measures one architecture; expected one name, "
            "or a run for each"
        )
    for name, one in settings_of(RepeatedOptions).items():
        if name in ("warmup", "steps", "threads") and texts[name] is not None:
            one.read(texts[name], notes)  # neither a list, nor auto, which goes with --precision
    every = {**defaults_as_typed(SweepOptions), **NOT_MEASURED, **texts}
    return parse_sweep_options(from_texts(SweepOptions, every, notes), notes)


def build_sweep(parsed: ParsedOptions, target: MeasuredFolder) -> tuple[SweepSpec, Machine]:
    """The sweep for this machine; says the notes that the user must see. Raises UsageError."""
    machine = machine_for(synthetic=target.synthetic)
    spec, notes = build_sweep_spec(parsed, machine, data_dir=target.data_dir)
    say(*notes)
    return spec, machine
