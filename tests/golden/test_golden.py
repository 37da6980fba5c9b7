"""What commands print, word for word; `python -m tests.golden` writes it anew.

Files of expected output are read as a whole when a change is reviewed: they show what it changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.cases import CASES, PREPARED
from tests.golden.outputs import EXPECTED, prepare, transcript

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    prepare(folder, PREPARED)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_commands_print_what_they_printed(folder: Path, name: str) -> None:
    assert transcript(CASES[name], folder) == (EXPECTED / f"{name}.txt").read_text()


def test_every_expected_file_belongs_to_a_case() -> None:
    assert {path.stem for path in EXPECTED.iterdir()} == set(CASES)
