"""What holds for every shipped architecture: sizes, options, losses, learning."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpbench import architecture
from dpbench.architecture import Architecture, SupportsAccuracy
from dpbench.data.batch import call
from dpbench.data.datasets import synthetic_dataset
from dpbench.measure.verification import verify
from dpbench.parallel.tree import move
from dpbench.rendezvous.process_group import RankGroup
from tests.measure.implementations.verifying import uneven

SMALL: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], str, str]] = {
    "bert": ("bert:layers=2,width=32,heads=2,dropout=0", (9, 256), (9,), "synthetic", "tokens"),
    "dlrm": ("dlrm:dense=4,tables=3,rows=10", (), (), "synthetic", "rows"),
    "dlrm-sparse": ("dlrm:dense=4,tables=3,rows=10,sparse=true", (), (), "synthetic", "rows"),
    "gpt": ("gpt:size=nano", (64, 256), (64,), "synthetic", "tokens"),
    "linear": ("linear", (2,), (2,), "synthetic", "rows"),
    "mlp": ("mlp:width=64", (10,), (), "digits", "images"),
    "mnist_cnn": ("mnist_cnn:width=8", (10,), (), "digits", "images"),
    "resnet": ("resnet", (10,), (), "synthetic", "images"),
    "vit": (
        "vit:image=32,patch=8,classes=10,width=32,layers=2,heads=4",
        *((10,), (), "synthetic", "images"),
    ),
}
"""Small ones by name, with the shapes of an output and a target, the dataset and the item."""


def small(name: str) -> Architecture:
    return architecture.load_architecture(SMALL[name][0])


def batch(made: Architecture, n: int, seed: int = 0) -> tuple[Any, Any]:
    return made.synthetic_batch(n, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "parameters", "multiply_adds"),
    [
        ("bert:size=micro", 3_308_544, None),
        ("dlrm", 17_115_985, None),
        ("gpt:size=nano", 100_272, None),
        ("gpt:size=micro", 3_241_472, 427_819_008 / 64 / 2e9),
        ("gpt:size=gpt2", 124_439_808, None),
        ("linear", 10, None),
        ("mlp", 1_863_690, 3_723_264 / 2e9),
        ("mnist_cnn", 1_199_882, 23_984_896 / 2e9),
        ("resnet", 11_173_962, None),
        ("resnet:depth=18,image=224", 11_689_512, 1.81),
        ("resnet:depth=50,image=224", 25_557_032, 4.09),
        ("resnet:depth=152,image=224", 60_192_808, 11.51),
        ("vit:size=tiny", 5_717_416, 1.26),
        ("vit:size=b", 86_567_656, 17.56),
    ],
)
def test_it_has_the_published_number_of_parameters_and_operations(
    name: str, parameters: int, multiply_adds: float | None
) -> None:
    """Parameters of the papers, torchvision or checkpoints; billions of multiply-adds an item."""
    made = architecture.load_architecture(name)
    with torch.device("meta"):
        model = made.build_model()
    assert sum(one.numel() for one in model.parameters()) == parameters
    if multiply_adds is not None:
        inputs = move(batch(made, 1)[0], torch.device("meta"))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            call(model, inputs)
        counted = counter.get_total_flops() / architecture.items_per_sample(made)
        assert counted / 2e9 == pytest.approx(multiply_adds, abs=0.02)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert:size=large", "size: got 'large'; it should be 'micro' or 'base'"),
        ("bert:dropout=1.0", "dropout: got 1.0, expected at least 0 and below 1"),
        ("gpt:heads=5", "width: got 256, expected a multiple of heads, 5"),
        ("mlp:layers=0", "layers: got 0, expected at least 1"),
        ("resnet:depth=19", "depth: got 19, expected 18, 34, 50, 101, 152"),
        ("vit:patch=15", "image: got 224, expected a multiple of patch, 15"),
    ],
)
def test_an_option_that_it_cannot_use_is_named(name: str, message: str) -> None:
    with pytest.raises(Exception, match=f"{re.escape(message)}$"):
        architecture.load_architecture(name)


@pytest.mark.parametrize("name", SMALL)
def test_it_turns_inputs_into_outputs_and_every_parameter_is_trained(name: str) -> None:
    _, output, target, dataset, item = SMALL[name]
    made = small(name)
    assert (made.default_dataset, made.item) == (dataset, item)
    inputs, targets = batch(made, 3)
    torch.testing.assert_close((inputs, targets), batch(made, 3), rtol=0, atol=0)
    torch.manual_seed(7)
    model = made.build_model()
    if dataset == "digits":
        assert (inputs.shape, inputs.dtype) == ((3, 1, 28, 28), torch.float32)
    outputs = call(model, inputs)
    assert (outputs.shape, targets.shape) == ((3, *output), (3, *target))
    loss = made.loss(outputs, targets)
    assert loss.shape == ()
    torch.autograd.backward(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.manual_seed(7)
    again = made.build_model().state_dict()
    assert all(
        torch.equal(again[key], value)
        for key, value in model.state_dict().items()
        if "running" not in key and "tracked" not in key
    )


A, B = [0.9, 0.1], [0.2, 0.8]
"""The likelier answer is 0, and 1."""


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "right"),
    [
        *((n, [A, B, A, B], [0, 0, 0, 1], 3) for n in ("mlp", "mnist_cnn", "resnet")),
        *((n, [[A, B, A], [B, B, A]], [[0, 1, 1], [0, 1, 0]], 4) for n in ("gpt", "bert")),
        ("dlrm", [2.0, -1.0, 0.5, -0.5], [1.0, 0.0, 0.0, 1.0], 2),
    ],
)
def test_right_predictions_are_counted(
    name: str, outputs: list[Any], targets: list[Any], right: int
) -> None:
    made = architecture.load_architecture(name)
    assert isinstance(made, SupportsAccuracy)
    assert made.count_correct(torch.tensor(outputs), torch.tensor(targets)) == right
    assert not isinstance(small("linear"), SupportsAccuracy)


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_a_synthetic_batch(name: str) -> None:
    made = small(name)
    torch.manual_seed(0)
    model = made.build_model()
    large = name == "resnet"
    rate = 0.02 if large else 0.2 if name.startswith("dlrm") else 0.05
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    if name == "vit":
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    inputs, targets = batch(made, 4 if large else 32, seed=1)
    losses = []
    for _ in range(4 if large else 30):
        optimizer.zero_grad()
        loss = made.loss(call(model, inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", [name for name in SMALL if name != "resnet"])  # it is slow
def test_uneven_replicas_have_the_gradients_of_one_process(name: str) -> None:
    made = small(name)
    samples = synthetic_dataset(made, seed=0, samples=32)
    found = verify(uneven("dp", "threads"), made, samples, 0, RankGroup())
    assert found.max_relative_error < 1e-12
    assert found.is_sample_mean
