"""`dpbench init`: a file that runs as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dpbench import architecture
from dpbench.cli.app import run
from dpbench.measure.try_out import try_architecture

pytestmark = pytest.mark.usefixtures("here")


def test_the_file_is_a_model_that_can_be_trained_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["init"]) == 0
    said = capsys.readouterr().out
    name = said.split("--arch ")[1].split()[0]
    assert name == "my_model.py:make"
    assert f"dpbench sweep --arch {name} --gpus 2\n" in Path("my_model.py").read_text()
    made = try_architecture(name)
    inputs, targets = made.synthetic_batch(256, torch.Generator().manual_seed(0))
    model = made.build_model()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), list[float]()
    for _ in range(30):
        loss = made.loss(model(inputs), targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert architecture.architecture_options(name) == {"width": "1024"}


def test_the_example_is_copied_as_it_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--example"]) == 0
    assert "dpbench report results/examples/two-cores\n" in capsys.readouterr().out
    assert run(["report", "results/examples/two-cores", "--no-charts"]) == 0
    assert "torch-ddp" in capsys.readouterr().out
    assert run(["report", "results/published/torch_ddp_rtx3090.csv", "--no-charts"]) == 0
