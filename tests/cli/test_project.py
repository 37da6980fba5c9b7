"""dpbench project as people call it: by a law, by a simulation, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.cli.app import run
from tests.analysis.projection.sweeps import swept
from tests.cli.stored import stored

H100 = ["--topology", "h100-nvswitch-ndr"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sweep at two batch sizes; the tests only read it."""
    return str(stored(tmp_path_factory.mktemp("it") / "alone", swept((32, 128))))


def test_no_control_character_of_a_published_table_reaches_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    name = '"a\x1b[31m\nb",g\x1bx,to\x1bken,s\x1bq'
    table.write_text(
        f"implementation,backend,item,source,gpus,images_per_second\n{name},1,5\n{name},2,9\n"
    )
    for command in (["project"], ["report", "--verbose"]):
        assert run([*command, str(table)]) == 0
        assert "\x1b" not in capsys.readouterr().out


def test_what_is_left_out_names_the_width_that_it_did_not_fit(
    alone: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["project", alone]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Not shown at 40 columns: " in said
