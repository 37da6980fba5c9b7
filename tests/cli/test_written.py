"""Files that options name: there at once or not at all, and an error that names them."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from dpbench.cli.written import write_file, write_text
from dpbench.errors import StoreError


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    write_text(file, "µs,1\r\n")
    assert file.read_bytes() == "µs,1\r\n".encode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    with pytest.raises(StoreError, match="cannot write /dev/full: No space left on device"):
        write_text(Path("/dev/full"), "text")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def half(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    file = tmp_path / "out.csv"
    file.write_text("old")
    with pytest.raises(StoreError, match=r"out\.csv: No space left"):
        write_file(file, half)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
