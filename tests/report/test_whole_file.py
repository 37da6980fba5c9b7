"""Files that are written whole: through links, with their mode; pipes are written into."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from dpbench.report.whole_file import write_whole


def new(path: Path) -> None:
    path.write_text("new")


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o600)
    assert write_whole(file, new) == file
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("there_already", [True, False])
def test_a_link_stays_one(tmp_path: Path, there_already: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if there_already:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, new)
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_stays_one_and_gets_what_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, new)
    reader.join(10)
    assert read == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("full")

    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(OSError, match="full"):
        write_whole(file, fail)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
