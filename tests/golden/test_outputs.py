"""What commands print, word for word; `python -m tests.golden` writes it anew.

Files of expected output are read as a whole when a change is reviewed: they show what it changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.cases import CASES, PREPARED
from tests.golden.outputs import EXPECTED, prepare, stable, transcript

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


@pytest.mark.parametrize(
    ("printed", "held"),
    [
        ("0.12345678901", "0.123457"),
        ('"x": -1476633803161.1873,', '"x": -1.47663e+12,'),
        ("1.0000001,2.5", "1,2.5"),
        ("-1.3877787807814457e-20", "0.0"),
        ("-0.0 and 5e-324", "0.0 and 0.0"),
        ("gloo,3.14159265358,7.", "gloo,3.14159,7."),
        ("torch 2.13.0, 1234567 bytes, v1.23456789", "torch 2.13.0, 1234567 bytes, v1.23456789"),
    ],
)
def test_numbers_are_held_to_six_digits(printed: str, held: str) -> None:
    assert stable(printed) == held
