from __future__ import annotations

import pytest
import torch
from dpbench.architectures.dlrm import Architecture

from dpbench import architecture
from dpbench.architectures import dlrm
from tests.architectures import on_meta
from tests.architectures.learning import counted_flops, loss_before_and_after

SMALL = Architecture(dense=4, tables=3, rows=10)
FIRST_LAYER_FORWARD_FLOPS = 2 * 4 * 512


def test_it_has_the_documented_number_of_parameters_most_of_them_in_tables() -> None:
    assert on_meta.parameter_count(Architecture()) == dlrm.PARAMETERS == 17_115_985
    assert 0.97 * dlrm.PARAMETERS < 26 * 40_000 * 16


def test_with_the_published_tables_it_has_the_published_number_of_parameters() -> None:
    """540 million, as the paper says; the tables have 33,762,577 rows."""
    rows = dlrm.CRITEO_KAGGLE_ROWS
    with torch.device("meta"):
        model = dlrm.DLRM(dense=13, rows=rows, width=16, sparse=False)
    assert (len(rows), sum(rows)) == (26, 33_762_577)
    assert sum(parameter.numel() for parameter in model.parameters()) == 540_677_217


def test_options_that_it_cannot_use_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^rows: got 0, expected at least 1$"):
        Architecture(rows=0)


def test_it_turns_numbers_and_rows_of_tables_into_logits() -> None:
    (dense, indices), clicked = SMALL.synthetic_batch(200, torch.Generator().manual_seed(0))
    assert (dense.shape, dense.dtype) == ((200, 4), torch.float32)
    assert (indices.shape, indices.dtype) == ((200, 3), torch.int64)
    assert indices.unique().tolist() == list(range(10))
    assert clicked.shape == (200,)
    assert clicked.unique().tolist() == [0, 1]
    assert SMALL.build_model()(dense, indices).shape == (200,)


def test_low_rows_come_more_often_than_high_ones() -> None:
    (_, indices), _ = Architecture(tables=1).synthetic_batch(2000, torch.Generator().manual_seed(0))
    assert (indices < 5_000).float().mean() == pytest.approx(0.5, abs=0.04)  # (1/8)^(1/3)


def test_the_products_of_every_two_vectors_are_looked_at() -> None:
    assert dlrm.top_sizes(tables=26, width=16)[0] == 16 + 27 * 26 // 2
    model = SMALL.build_model()
    seen: list[torch.Tensor] = []
    model.top.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(torch.zeros(1, 4), torch.tensor([[1, 2, 3]]))
        vectors = [table.weight[row] for table, row in zip(model.tables, (1, 2, 3), strict=True)]
    expected = [vectors[a] @ vectors[b] for a, b in ((1, 0), (2, 0), (2, 1))]
    products = seen[0][0, 16:]  # behind the dense features: first with them, then with each other
    torch.testing.assert_close(products[[2, 4, 5]], torch.stack(expected))


def test_its_gradients_are_dense_or_of_the_rows_that_were_looked_up() -> None:
    (dense, indices), clicked = SMALL.synthetic_batch(2, torch.Generator().manual_seed(0))
    gradients = []
    for sparse in (False, True):
        torch.manual_seed(0)
        made = architecture.load(f"dlrm:dense=4,tables=3,rows=10,sparse={str(sparse).lower()}")
        model = made.build_model()
        torch.autograd.backward(made.loss(model(dense, indices), clicked))
        gradient = model.tables[0].weight.grad
        assert gradient.is_sparse is sparse
        gradients.append(gradient.to_dense())
    torch.testing.assert_close(*gradients)


def test_its_loss_is_the_mean_binary_cross_entropy() -> None:
    loss = SMALL.loss(torch.log(torch.tensor([3.0, 1.0])), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(loss, torch.log(torch.tensor(8 / 3)) / 2)


def test_its_flops_are_those_that_torch_counts_and_an_input_gradient() -> None:
    assert 3 * counted_flops(SMALL, backward=False) == SMALL.flops_per_item
    counted = counted_flops(SMALL, backward=True)
    assert SMALL.flops_per_item - counted == FIRST_LAYER_FORWARD_FLOPS


@pytest.mark.parametrize("sparse", [False, True])
def test_it_learns_the_synthetic_clicks(sparse: bool) -> None:
    made = Architecture(dense=4, tables=3, rows=10, sparse=sparse)
    before, after = loss_before_and_after(made, steps=30, learning_rate=0.2)
    assert after < 0.85 * before


def test_its_items_are_rows_and_its_default_dataset_is_synthetic() -> None:
    made = Architecture()
    assert (made.name, made.item, made.items_per_sample) == ("dlrm", "rows", 1)
    assert made.default_dataset == "synthetic"
