"""Files inside folders are whole, and written through no link; named ones may be."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dpbench import files
from dpbench.errors import FileError
from dpbench.files import (
    LineWriter,
    folder_inside,
    folder_name,
    remove_leftovers,
    write_inside,
    write_named,
    write_output,
)

SPECIAL: dict[str, Callable[[Path], None]] = {
    "a link": lambda path: (path.parent / "x").write_text("x") and path.symlink_to("x"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}
WAYS: dict[str, Callable[[Path], object]] = {
    "append": lambda path: LineWriter(path, writer="", if_lost=""),
    "write": lambda path: write_inside(path, b"new"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_refused_in_one_line_and_stays_as_it_is(
    tmp_path: Path, kind: str, way: str
) -> None:
    path = tmp_path / "file"
    SPECIAL[kind](path)
    before = path.lstat()
    with pytest.raises(
        FileError, match=f"^{path} is a link or not a file; expected a regular file$"
    ):
        WAYS[way](path)
    after = path.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert not (tmp_path / "nothing").exists()


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    assert files.is_free(tmp_path)
    assert files.is_free(tmp_path / "nothing")
    (tmp_path / "notes").touch()
    assert not files.is_free(tmp_path)
    assert not files.is_free(tmp_path / "notes")


def test_a_folder_inside_is_made_and_never_a_link(tmp_path: Path) -> None:
    assert folder_inside(tmp_path, "a", "b") == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()
    assert folder_inside(tmp_path, "a", "b", make=True).is_dir()
    assert folder_inside(tmp_path, "a", "b", make=True).is_dir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").touch()
    for make in (False, True):
        with pytest.raises(FileError, match="link is a link or not a folder; expected a folder"):
            folder_inside(tmp_path, "link", "b", make=make)
        with pytest.raises(FileError, match="file is a link or not a folder"):
            folder_inside(tmp_path, "file", make=make)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_content_of_a_file_is_on_disk_before_it_has_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    flush, replace = os.fsync, Path.replace

    def noted_flush(descriptor: int) -> None:
        flush(descriptor)
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")

    def noted_replace(path: Path, target: Path) -> Path:
        steps.append("name")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_flush)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_inside(tmp_path / "file", b"content")
    assert steps == ["content", "name", "folder"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_inside(path, b"before")
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    path.chmod(0o640)
    write_inside(path, b"after")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"after", 0o640)
    assert names(tmp_path) == ["a.pt"]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_what_a_dead_writer_left_goes(tmp_path: Path) -> None:
    (tmp_path / "a.pt.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / "a.pt").write_bytes(b"whole")
    (tmp_path / "notes.tmp").touch()  # somebody else's
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["a.pt", "notes.tmp"]


@pytest.mark.parametrize("there_already", [True, False])
def test_a_named_link_stays_one(tmp_path: Path, there_already: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if there_already:
        target.write_text("old")
    link.symlink_to(target)
    write_named(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"


DIRECT = re.compile(r"(?<!formatter)\.(write_text|write_bytes|touch)\(|(?<!fd)open\(.*\"[wax]")
MAY_WRITE = {
    "files.py",
    "run/init.py",  # a new file, named by the user
    *("launch/rank_process.py", "measure/script/program.py"),  # in the private folder of a trial
    "run/check/revision.py",  # in a new worktree
}


def test_all_other_modules_write_through_files() -> None:
    """A results folder may be somebody else's: nothing in it is written through a link."""
    package = Path(files.__file__).parent
    direct = {path for path in package.rglob("*.py") if DIRECT.search(path.read_text())}
    assert {path.relative_to(package).as_posix() for path in direct} == MAY_WRITE


def test_a_file_that_was_read_is_not_written_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text("results")
    assert files.read_bytes(path) == b"results"
    with pytest.raises(FileError, match=r"sweep\.json holds what is read here; expected another"):
        files.write_output(path, "a verdict")
    assert path.read_text() == "results"


def test_a_failed_write_names_the_file_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    file = tmp_path / "out.csv"
    file.write_text("old")
    with pytest.raises(FileError, match=r"out\.csv: No space left"):
        write_output(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_has_the_name_of_the_file_and_its_options() -> None:
    assert folder_name("../models/net.py:make:depth=3,width=2") == "net-make-depth=3,width=2"
    assert folder_name("resnet:depth=50") == "resnet-depth=50"
    assert folder_name("a.b:C") == "a.b-C"
    assert folder_name("train.py") == "train"  # explain takes a folder x.py for a script
