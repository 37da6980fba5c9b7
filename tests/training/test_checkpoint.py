from __future__ import annotations

import io
from dataclasses import fields

import pytest
import torch

from dpbench.errors import UsageError
from dpbench.training import archive
from dpbench.training.checkpoint import (
    Checkpoint,
    from_bytes,
    to_bytes,
    to_plain,
)
from tests.training.checkpoint_samples import checkpoint, same, trained


def test_it_comes_back_as_it_was() -> None:
    made = checkpoint(shares=(2.0, 1.0), scaler={"scale": 1024.0})
    read = from_bytes(to_bytes(made), "runs/a/best.pt")
    assert read.source == "runs/a/best.pt"
    assert made.source is None
    for part in fields(Checkpoint):
        if part.name != "source":
            assert same(getattr(read, part.name), getattr(made, part.name)), part.name


def test_torch_alone_can_read_it() -> None:
    content = torch.load(io.BytesIO(to_bytes(checkpoint())), weights_only=True)
    assert content["step"] == 7
    module, _ = trained()
    module.load_state_dict(content["model"])
    assert content["spec"]["workload"]["architecture"] == "mlp"


def test_a_model_that_is_restored_steps_as_the_one_that_was_saved() -> None:
    module, optimizer = trained()
    read = from_bytes(to_bytes(checkpoint()), "here")
    again, fresh = trained()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(read.model)
    fresh.load_state_dict(read.optimizers[0])
    for model, steps in ((module, optimizer), (again, fresh)):
        steps.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        steps.step()
    assert same(module.state_dict(), again.state_dict())


def test_a_foreign_file_is_refused_in_one_line() -> None:
    ours = {**to_plain(checkpoint()), "model": dict(checkpoint().model)}
    without_states = {name: part for name, part in ours.items() if name != "random_states"}
    for content, words in (
        (trained()[0].state_dict(), "this is no checkpoint of dpbench train"),
        (torch.ones(3), "this is no checkpoint of dpbench train"),
        ({**ours, "format_version": 2}, "got format version 2; this dpbench reads 1"),
        ({**ours, "spec": {"epochs": 3}}, "TrainingSpec.workload: missing"),
        (
            {**ours, "spec": {"epochs": torch.ones(9)}},
            "TrainingSpec: not JSON: Object of type Tensor is not JSON serializable",
        ),
        (without_states, "'random_states'"),
    ):
        with pytest.raises(UsageError) as caught:
            from_bytes(archive.dumps(content), "best.pt")
        assert str(caught.value) == f"best.pt: {words}"
