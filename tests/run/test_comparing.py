from __future__ import annotations

from pathlib import Path

from dpbench.run.comparing import load_sides
from tests.analysis.builders import run, trial, varied
from tests.cli.stored import stored


def test_a_selection_begins_behind_the_folder_whose_path_has_a_colon(tmp_path: Path) -> None:
    (tmp_path / "run:1").mkdir()
    folder = stored(tmp_path / "run:1" / "a", [run(trial(), 100.0)])
    (side,), _ = load_sides(f"{folder}:backend=gloo")
    assert (side.sweep.folder, side.where) == (folder, {"backend": "gloo"})


def test_a_selected_value_is_read_as_the_option_reads_it(tmp_path: Path) -> None:
    """What the option does not read stays as it is typed."""
    folder = stored(tmp_path / "a", [run(trial(), 100.0)])
    (side,), _ = load_sides(f"{folder}:lr=0.010,dtype=fp32,bucket_cap_mb=auto,seed=1_0")
    assert side.where == {"lr": "0.01", "dtype": "f32", "bucket_cap_mb": "auto", "seed": "1_0"}


def test_an_option_of_an_architecture_may_be_called_like_a_setting(tmp_path: Path) -> None:
    name = "m.py:make:width=2,steps=3"
    folder = stored(tmp_path / "a", [run(varied(trial(), architecture=name), 100.0)])
    (side,), _ = load_sides(f"{folder}:architecture={name},steps=4")
    assert side.where == {"architecture": name, "steps": "4"}
