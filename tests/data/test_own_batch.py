"""Batches of a class of the user's, which selects its own samples: graphs of a recipe."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.data.datasets import Dataset
from dpbench.errors import UsageError
from dpbench.measure.try_out import try_architecture

RECIPE = Path(__file__).parent.parent.parent / "docs" / "recipes" / "graphs.py"
SIZES = [4, 3, 8, 5, 6]


@pytest.fixture
def recipe() -> dict[str, Any]:
    return runpy.run_path(str(RECIPE))


def graphs_of(recipe: dict[str, Any]) -> Any:
    graphs = recipe["Graphs"]
    parts = [
        graphs(torch.full((n, 8), float(n)), torch.arange(n).repeat(2, 1).T, torch.tensor([n]))
        for n in SIZES
    ]
    return recipe["joined"](parts)


def test_samples_are_selected_by_the_object(recipe: dict[str, Any]) -> None:
    data = Dataset(inputs={"graphs": graphs_of(recipe)}, targets=torch.arange(5))
    assert len(data) == 5
    inputs, targets = data.select(torch.tensor([3, 1]))
    assert inputs["graphs"].sizes.tolist() == [SIZES[3], SIZES[1]]
    assert inputs["graphs"].edges[-1].tolist() == [7, 7]
    assert targets.tolist() == [3, 1]
    assert data.part(2, 5).inputs["graphs"].sizes.tolist() == SIZES[2:]
    moved = data.to("meta", torch.float64).inputs["graphs"]
    assert (moved.nodes.device.type, moved.nodes.dtype) == ("meta", torch.float64)
    assert moved.edges.dtype == torch.int64


def test_the_recipe_is_tried_out_and_needs_a_tensor(here: Path) -> None:
    (here / "graphs.py").write_text(
        RECIPE.read_text() + "\n\ndef bare():\n"
        "    return GraphNetwork(), lambda n, g=None: (batch(n, g)[0],) * 2, lambda *_: 0\n"
    )
    assert try_architecture("graphs.py:make").default_dataset == "synthetic"
    with pytest.raises(UsageError, match="expected a tensor among the inputs and targets"):
        try_architecture("graphs.py:bare")
