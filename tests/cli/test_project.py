"""dpbench project as people call it: by a law, by a simulation, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpbench.cli.app import run
from tests.analysis.builders import noisy_sweep
from tests.analysis.projection.sweeps import PUBLISHED, swept
from tests.cli.stored import stored

WEAK = str(PUBLISHED / "weak_scaling.csv")
H100 = ["--topology", "h100-nvswitch-ndr"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sweep at two batch sizes; the tests only read it."""
    return str(stored(tmp_path_factory.mktemp("it") / "alone", swept((32, 128))))


def series(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(["project", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["series"]
    return found


def sizes(one: dict[str, Any]) -> dict[int, str]:
    return {row["group_size"]: row["kind"] for row in one["rows"]}


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


def test_a_network_is_simulated_with_its_assumptions(
    alone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = series([alone, *H100], capsys)
    assert first["network"] == "h100-nvswitch-ndr"
    assert sizes(first) == {
        1: "measured", **dict.fromkeys((2, 8, 64, 1000), "projected")
    }  # fmt: skip
    assert any("NVLink" in line for line in first["assumptions"])
    assert run(["project", alone, "--bandwidth", "10", "--group-sizes", "8,64"]) == 0
    assert "Simulated on 10 GB/s, 10 µs" in capsys.readouterr().out


def test_no_number_rests_on_a_row_that_is_too_noisy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(stored(tmp_path / "noisy", noisy_sweep()))
    words = "too noisy to project: ddp/gloo ×2, batch 32; measure again with more --repetitions"
    assert run(["project", folder]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert "dp, batch 32" in printed
    assert printed.count("ddp/gloo") == 1
    for arguments in (["--implementations", "ddp"], H100):
        assert run(["project", folder, *arguments]) == 2
        assert capsys.readouterr().err == f"dpbench: {folder}: {words}\n"
