from __future__ import annotations

import io
from dataclasses import fields, replace
from typing import Any

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
from tests.training.checkpoint_samples import SPEC, checkpoint, same, trained


def reason(content: Any) -> str:
    """The one line that is said of a file with this content."""
    with pytest.raises(UsageError) as caught:
        from_bytes(archive.dumps(content), "best.pt")
    words = str(caught.value)
    assert "\n" not in words
    assert words.startswith("best.pt: ")
    return words.removeprefix("best.pt: ")


def with_part(name: str, value: Any) -> dict[str, Any]:
    made = checkpoint()
    return {**to_plain(made), "model": dict(made.model), name: value}


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


def test_other_files_of_torch_are_named_and_refused() -> None:
    bare = trained()[0].state_dict()
    assert reason(bare).endswith(
        "this is no checkpoint of dpbench train, but a bare state dict of 9 tensors"
    )
    assert reason(torch.ones(3)).endswith("but a Tensor")
    assert reason({}).endswith("but a dict of something else")


def test_a_newer_format_asks_for_an_upgrade() -> None:
    words = reason(with_part("format_version", 2))
    assert words == (
        "it has format version 2, and this dpbench reads up to 1; upgrade dpbench to read it"
    )
    assert reason(with_part("format_version", "1")) == "it has no format version"


def test_a_spec_that_does_not_fit_is_told_with_its_field() -> None:
    assert reason(with_part("spec", {"epochs": 3})).startswith("TrainingSpec lacks the field")
    spec = {**to_plain(checkpoint())["spec"], "implementation": "best"}
    assert reason(with_part("spec", spec)) == "unknown implementation 'best'"
    assert "expected an object" in reason(with_part("spec", None))
    assert "Tensor is not JSON" in reason(with_part("spec", {"epochs": torch.ones(9, 9)}))
    assert "unknown field" in reason(with_part("spec", {1: 2, "a": 3}))
    assert len(reason(with_part("spec", {**spec, "epochs": "\n\x1b" * 999}))) < 200


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("epoch", -1, "its 'epoch' is int; expected a whole number of at least 0"),
        ("step", True, "its 'step' is bool; expected a whole number of at least 0"),
        ("window", 1.0, "its 'window' is float"),
        ("model", {"weight": 1.0}, "its 'model' is dict; expected tensors by name"),
        ("model", {"weight": torch.eye(2).to_sparse()}, "it holds a tensor that is not dense"),
        ("model", {1: torch.ones(1)}, "its 'model' is dict; expected tensors by name"),
        ("optimizers", [], "it holds 0 optimizers of a training of 2 processes; expected 1"),
        ("optimizers", [{}, {}], "it holds 2 optimizers of a training of 2 processes; expected 1"),
        ("samples_sha256", None, "its 'samples_sha256' is NoneType; expected a hash"),
        ("optimizers", [None], "its 'optimizers' is list; expected a list of state dicts"),
        ("random_states", [{}], "it holds 1 random_states of a training of 2 processes"),
        ("shares", [1.0], "it holds 1 shares of a training of 2 processes; expected 0 or 2"),
        ("shares", [1.0, float("nan")], "its 'shares' is list; expected a list of numbers above 0"),
        ("scaler", 1.0, "its 'scaler' is float; expected a state dict or None"),
        ("best_metric", "1", "its 'best_metric' is str; expected a number or None"),
    ],
)
def test_a_part_of_another_kind_is_told_with_what_was_expected(
    part: str, value: Any, words: str
) -> None:
    assert reason(with_part(part, value)).startswith(words)


def test_a_part_that_is_missing_is_named() -> None:
    content = with_part("epoch", 0)
    del content["random_states"]
    assert reason(content) == "its 'random_states' is nothing; expected a list of states"


def test_each_process_has_its_own_and_one_process_one_of_each() -> None:
    local = checkpoint(spec=replace(SPEC, implementation="local-sgd"))
    with pytest.raises(UsageError, match="1 optimizers of a training of 2 processes; expected 2"):
        from_bytes(to_bytes(local), "here")
    alone = replace(SPEC, implementation="dp", backend="threads")
    made = checkpoint(spec=alone)
    with pytest.raises(UsageError, match="2 random_states of a training of 1 processes"):
        from_bytes(to_bytes(made), "here")
    from_bytes(to_bytes(replace(made, random_states=made.random_states[:1])), "here")
