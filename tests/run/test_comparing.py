from __future__ import annotations

from pathlib import Path

from dpbench.run.comparing import split_selection


def test_a_selection_begins_behind_the_folder_whose_path_has_a_colon(tmp_path: Path) -> None:
    folder = tmp_path / "run:1" / "a"
    folder.mkdir(parents=True)
    assert split_selection(f"{folder}:backend=gloo") == (folder, {"backend": "gloo"})


def test_a_selected_value_is_read_as_the_option_reads_it(tmp_path: Path) -> None:
    """What the option does not read stays as it is typed."""
    _, where = split_selection(f"{tmp_path}:lr=0.010,dtype=fp32,bucket_cap_mb=auto,seed=1_0")
    assert where == {"lr": "0.01", "dtype": "f32", "bucket_cap_mb": "auto", "seed": "1_0"}
