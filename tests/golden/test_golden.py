"""What commands print, word for word; `python -m tests.golden` writes it anew.

Files of expected output are read as a whole when a change is reviewed: they show what it changed.
To add a command line, write it into one of them, as `$ dpbench …`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.outputs import EXPECTED, expected, prepare, transcript

pytestmark = pytest.mark.slow
NAMES = sorted({path.stem for path in EXPECTED.iterdir()} - {"refused"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    prepare(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_commands_print_what_they_printed(folder: Path, name: str) -> None:
    assert transcript(name, folder) == expected(name)


def test_a_wrong_value_is_one_line_and_exit_status_2(folder: Path) -> None:
    """5 where there is nothing to compare; nothing is written, nor printed to stdout."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    printed = transcript("refused", folder)
    assert printed == expected("refused")
    assert {*re.findall(r"^\[(.*)\]$", printed, re.MULTILINE)} == {"2", "5"}
    assert not re.findall(r"^(?!\$ |! dpbench: |\[|$).*", printed, re.MULTILINE)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
