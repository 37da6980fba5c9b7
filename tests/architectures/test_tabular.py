from __future__ import annotations

import pytest
import torch
from dpbench.architectures.tabular import Architecture
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpbench import architecture
from dpbench.architectures import tabular
from tests.architectures import on_meta
from tests.architectures.learning import counted_flops, loss_before_and_after

SMALL = Architecture(features=5, classes=3, layers=2, width=24, heads=2)
NUMBER = Architecture(features=5, classes=1, layers=2, width=24, heads=2)


def test_it_has_the_documented_number_of_parameters() -> None:
    assert on_meta.parameter_count(Architecture()) == tabular.PARAMETERS == 903_554


def test_on_a_hundred_features_it_has_as_many_as_the_papers_default() -> None:
    """38,592 in the tokens, 297,152 in each layer but for 384 of the first, 577 in the head."""
    made = architecture.load("tabular:features=100,classes=1")
    assert on_meta.parameter_count(made) == 38_592 + 3 * 297_152 - 384 + 577 == 930_241


def test_options_that_it_cannot_use_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^features: got 0, expected at least 1$"):
        Architecture(features=0)
    with pytest.raises(ValueError, match=r"^width: got 192, expected a multiple of 7$"):
        Architecture(heads=7)


def test_it_turns_rows_into_logits_of_the_classes() -> None:
    rows, targets = SMALL.synthetic_batch(4, torch.Generator().manual_seed(0))
    assert (rows.shape, rows.dtype) == ((4, 5), torch.float32)
    assert (targets.shape, targets.dtype) == ((4,), torch.int64)
    assert SMALL.build_model()(rows).shape == (4, 3)


def test_with_one_class_it_turns_rows_into_numbers() -> None:
    rows, targets = NUMBER.synthetic_batch(4, torch.Generator().manual_seed(0))
    assert (targets.shape, targets.dtype) == ((4,), torch.float32)
    assert NUMBER.build_model()(rows).shape == (4,)
    loss = NUMBER.loss(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    assert loss == 2


def test_its_loss_is_the_mean_cross_entropy() -> None:
    outputs = torch.log(torch.tensor([[3.0, 1.0], [1.0, 1.0]]))  # probabilities 3/4 and 1/2
    loss = SMALL.loss(outputs, torch.tensor([0, 0]))
    torch.testing.assert_close(loss, torch.log(torch.tensor(8 / 3)) / 2)


def test_every_feature_has_a_vector_and_a_bias_of_its_own() -> None:
    tokenizer = tabular.Tokenizer(3, 4)
    with torch.no_grad():
        tokens = tokenizer(torch.tensor([[0.0, 1.0, -2.0]]))
    assert tokens.shape == (1, 4, 4)
    torch.testing.assert_close(tokens[0, 0], tokenizer.cls)
    torch.testing.assert_close(tokens[0, 1], tokenizer.bias[0])
    torch.testing.assert_close(tokens[0, 3], tokenizer.bias[2] - 2 * tokenizer.weight[2])


def test_a_row_is_answered_by_itself() -> None:
    model = SMALL.build_model().eval()
    rows, _ = SMALL.synthetic_batch(4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(rows)[2:3], model(rows[2:3]))


def test_every_parameter_is_trained() -> None:
    model = SMALL.build_model()
    rows, targets = SMALL.synthetic_batch(4, torch.Generator().manual_seed(0))
    torch.autograd.backward(SMALL.loss(model(rows), targets))
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("made", [SMALL, NUMBER])
def test_its_flops_are_those_that_torch_counts(made: Architecture) -> None:
    """Counted where attention is written in matrix products; torch counts no fused one on a CPU.

    Making tokens of features is no matrix product, so no layer lacks the gradient of its input.
    """
    with sdpa_kernel(SDPBackend.MATH):
        assert 3 * counted_flops(made, backward=False) == made.flops_per_item
        assert counted_flops(made, backward=True) == made.flops_per_item


@pytest.mark.parametrize("made", [SMALL, NUMBER])
def test_it_learns_the_synthetic_rows(made: Architecture) -> None:
    before, after = loss_before_and_after(made, steps=40, learning_rate=0.01)
    assert after < 0.7 * before


@pytest.mark.parametrize(
    ("features", "classes", "dataset"),
    [
        *((30, 2, "breast_cancer"), (4, 3, "iris"), (13, 3, "wine"), (10, 1, "diabetes")),
        (10, 2, "synthetic"),
    ],
)
def test_its_default_dataset_is_the_table_that_fits(
    features: int, classes: int, dataset: str
) -> None:
    made = Architecture(features=features, classes=classes)
    assert (made.name, made.item, made.default_dataset) == ("tabular", "rows", dataset)
