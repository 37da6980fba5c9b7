from __future__ import annotations

from pathlib import Path

from dpbench.run.comparing import split_selection


def test_a_selection_begins_behind_the_folder_whose_path_has_a_colon(tmp_path: Path) -> None:
    folder = tmp_path / "run:1" / "a"
    folder.mkdir(parents=True)
    assert split_selection(f"{folder}:backend=gloo") == (folder, {"backend": "gloo"})
