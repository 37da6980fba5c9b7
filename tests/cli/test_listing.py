"""`dpbench list`: every name that options take, and why some cannot be used here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dpbench import architecture
from dpbench.cli.app import run
from dpbench.data.registry import DATASETS
from dpbench.options.sweep import SweepOptions
from dpbench.options.train import TrainOptions
from dpbench.report.charts.kinds import CHARTS
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS

NAMES = {
    "architectures": [*architecture.shipped_architectures(), "torchvision:NAME"],
    "implementations": list(IMPLEMENTATIONS),
    "backends": list(BACKENDS),
    "datasets": list(DATASETS),
    "presets": [*SweepOptions.presets, *TrainOptions.presets],
    "charts": list(CHARTS),
}
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")


@pytest.fixture
def rows(here: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str | None]]:
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
    of_packages = {name for name, traits in IMPLEMENTATIONS.items() if traits.requires is not None}
    of_packages.add("torchvision:NAME")
    reasons = {
        row["name"]: row["reason"]
        for row in rows
        if row["reason"] is not None and row["name"] not in of_packages  # may be there or not
    }
    assert set(reasons) == {"torch-dp", "nccl", "nccl-legacy", "nccl2", "mnist"}
    assert "CUDA" in (reasons["torch-dp"] or "")
    assert "nccl" in (reasons["nccl"] or "")
    assert "--download" in (reasons["mnist"] or "")
