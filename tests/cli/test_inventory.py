"""`dpbench list`: every name that options take, and why some cannot be used here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dpbench import architecture
from dpbench.cli.app import run
from dpbench.data.registry import DATASETS
from dpbench.report.charts.kinds import CHARTS
from dpbench.run import presets
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS
from tests.data.mnist_folder import put_training_set

NAMES = {
    "architecture": list(architecture.names()),
    "library": list(architecture.LIBRARIES),
    "implementation": list(IMPLEMENTATIONS),
    "backend": list(BACKENDS),
    "dataset": list(DATASETS),
    "preset": [*presets.names(), *presets.training_names()],
    "chart": list(CHARTS),
}
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")


@pytest.fixture
def rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, str | None]]:
    monkeypatch.chdir(tmp_path)
    assert run(["list", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    content: list[dict[str, str | None]] = json.loads(out)
    return content


def test_json_has_a_row_for_every_name(rows: list[dict[str, str | None]]) -> None:
    found: dict[str, list[str | None]] = {}
    for row in rows:
        assert set(row) == {"kind", "name", "reason", "description"}
        assert row["description"]
        found.setdefault(row["kind"] or "", []).append(row["name"])
    assert found == NAMES


@without_cuda
def test_what_cannot_be_used_here_has_a_reason_and_the_rest_has_none(
    rows: list[dict[str, str | None]],
) -> None:
    reasons = {
        row["name"]: row["reason"]
        for row in rows
        if row["reason"] is not None and not _needs_a_package(row)  # which may be there or not
    }
    assert set(reasons) == {"torch-dp", "nccl", "mnist", "text"}
    assert "CUDA" in (reasons["torch-dp"] or "")
    assert "nccl" in (reasons["nccl"] or "")
    assert "train-images-idx3-ubyte" in (reasons["mnist"] or "")


def _needs_a_package(row: dict[str, str | None]) -> bool:
    traits = IMPLEMENTATIONS.get(row["name"] or "")
    return row["kind"] == "library" or (traits is not None and traits.requires is not None)


def test_an_architecture_says_how_large_it_is(rows: list[dict[str, str | None]]) -> None:
    descriptions = {row["name"]: row["description"] or "" for row in rows}
    assert descriptions["mlp"].startswith("1,863,690 parameters, 11.2 MFLOP per step and item")
    assert descriptions["mnist_cnn"].startswith("1,199,882 parameters")
    assert descriptions["mlp"].endswith("options width=1024, layers=2")
    assert descriptions["timm"] == "--arch timm:NAME, random weights"


def test_the_table_shows_every_name_and_whether_it_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert max(map(len, lines)) <= 100
    cells = [line.split()[:3] for line in lines if not line.startswith(" ")]
    assert [(kind, name) for kind, name, _ in cells] == [
        (kind, name) for kind, names in NAMES.items() for name in names
    ]
    assert {usable for _, _, usable in cells} == {"yes", "no"}
    assert ["dataset", "mnist", "no"] in cells
    assert ["backend", "gloo", "yes"] in cells


def test_mnist_is_usable_where_its_files_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_training_set(tmp_path, 10)
    assert run(["list", "--json", "--data-dir", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert next(row for row in rows if row["name"] == "mnist")["reason"] is None
