from __future__ import annotations

from pathlib import Path

from dpbench.run.comparing import load_sides
from tests.analysis.builders import run, trial, varied
from tests.cli.stored import stored


def test_a_selection_follows_its_folder_and_is_read_as_options_read_it(tmp_path: Path) -> None:
    """What no option reads stays as it is typed; an option of an architecture may be called like a
    setting."""
    name = "m.py:make:width=2,steps=3"
    folder = stored(tmp_path / "run:1" / "a", [run(varied(trial(), architecture=name), 100.0)])
    selection = f"lr=0.010,dtype=fp32,bucket_cap_mb=auto,seed=1_0,architecture={name},steps=4"
    (side,), _ = load_sides(f"{folder}:{selection}")
    read = {"lr": "0.01", "dtype": "f32", "bucket_cap_mb": "auto", "seed": "1_0"}
    assert (side.sweep.folder, side.where) == (folder, read | {"architecture": name, "steps": "4"})
