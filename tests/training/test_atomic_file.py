from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpbench.training.atomic_file import place, place_also, remove_leftovers, temporary_beside


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"before")
    with temporary_beside(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
        place(file, path)
        assert path.read_bytes() == b"after"
    assert names(tmp_path) == ["a.pt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_nothing_is_left_of_one_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with pytest.raises(ValueError, match="half way"), temporary_beside(path) as file:
        fail_half_way(file)
    assert names(tmp_path) == []


def fail_half_way(file: object) -> None:
    raise ValueError("half way")


@pytest.mark.parametrize("links", [True, False])
def test_it_can_have_a_second_name(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:  # as file systems that have one name a file do
        monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "best.pt").write_bytes(b"old")
    with temporary_beside(tmp_path / "a.pt") as file:
        file.write(b"content")
        place_also(file, tmp_path / "best.pt")
        place(file, tmp_path / "a.pt")
    assert names(tmp_path) == ["a.pt", "best.pt"]
    assert (tmp_path / "best.pt").read_bytes() == (tmp_path / "a.pt").read_bytes() == b"content"
    assert (tmp_path / "best.pt").samefile(tmp_path / "a.pt") == links


def test_what_a_dead_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    (tmp_path / "a.pt.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / "a.pt").write_bytes(b"whole")
    (tmp_path / "notes.tmp").touch()  # somebody else's
    with temporary_beside(tmp_path / "b.pt") as file:
        os.link(file.name, tmp_path / "best.pt.456789ab.tmp")  # a second name on its way
        assert remove_leftovers(tmp_path) == ["a.pt.0123abcd.tmp"]
        place(file, tmp_path / "b.pt")
    assert names(tmp_path) == ["a.pt", "b.pt", "best.pt.456789ab.tmp", "notes.tmp"]
    assert remove_leftovers(tmp_path) == ["best.pt.456789ab.tmp"]


def test_a_file_that_was_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody looked between its creation and its lock."""
    flocks = []

    def late(file: object, how: int) -> None:
        if not flocks:
            next(tmp_path.glob("*.tmp")).unlink()
        flocks.append(how)

    monkeypatch.setattr("fcntl.flock", late)
    with temporary_beside(tmp_path / "a.pt") as file:
        file.write(b"content")
        place(file, tmp_path / "a.pt")
    assert len(flocks) == 2
    assert (tmp_path / "a.pt").read_bytes() == b"content"
