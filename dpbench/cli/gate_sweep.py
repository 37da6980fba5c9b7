"""The sweep that `check` and `calibrate` measure: some options of `dpbench sweep`, the rest at its
defaults."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpbench.cli.measuring import Measurement
from dpbench.cli.new_folder import results_folder
from dpbench.cli.sweep import make_importable, sweep
from dpbench.cli.sweep_options import ParsedOptions, SweepOptions, parse
from dpbench.cli.values import positive_int
from dpbench.errors import StoreError
from dpbench.specs import SweepSpec

NOT_MEASURED = {"phases": "0", "gradient_steps": "0"}
"""Nothing here reads them, so no time is spent on them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where what is measured goes, and how much is said meanwhile."""

    name: str | None
    results_dir: Path
    data_dir: Path | None
    quiet: bool
    synthetic: bool

    def folder(self, command: str) -> Path:
        """A folder that does not exist yet; raises StoreError if it does."""
        folder = results_folder(self.results_dir, self.name, otherwise=command)
        if folder.exists():
            raise StoreError(f"{folder} exists already; choose another --name")
        return folder

    def measurement(self, spec: SweepSpec, folder: Path) -> Measurement:
        return Measurement(
            spec=spec,
            folder=folder,
            command=sys.argv[1:],
            data_dir=self.data_dir,
            quiet=self.quiet,
            synthetic=self.synthetic,
        )


def parse_sweep(typed: Mapping[str, Any]) -> ParsedOptions:
    """Checks the options that were typed, under the names that `dpbench sweep` has for them."""
    defaults = {name: p.default for name, p in inspect.signature(sweep).parameters.items()}
    make_importable(typed["arch"], typed.get("step"), typed.get("data"))
    positive_int("--steps", typed["steps"])  # not auto: for that there is no --precision here
    values = {**defaults, **NOT_MEASURED, **typed}
    return parse(SweepOptions(**{field.name: values[field.name] for field in fields(SweepOptions)}))
