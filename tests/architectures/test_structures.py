"""What single architectures are built for: attention, masks, tables, stages, exact sums."""

from __future__ import annotations

import pytest
import torch

from dpbench import architecture
from dpbench.architectures import bert, gpt, linear


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_bert_predicts_as_many_tokens_in_each_sequence_most_of_them_masked() -> None:
    made = bert.Architecture(layers=2, width=32, heads=2, dropout=0.0)
    (tokens, places), targets = made.synthetic_batch(500, seeded())
    assert places.shape == targets.shape == (500, 9)  # 15 % of 64
    assert (places.diff(dim=1) > 0).all()  # none twice
    assert places.unique().tolist() == list(range(64))
    shown = tokens.gather(1, places)
    assert (shown == made.mask).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (shown == targets).float().mean() == pytest.approx(0.1, abs=0.03)
    assert tokens.scatter(1, places, 0).max() < 32  # the others are of the text's alphabet


def test_bert_sees_both_sides_and_gpt_only_earlier_tokens() -> None:
    both = bert.Architecture(layers=2, width=32, heads=2, dropout=0.0)
    (tokens, places), _ = both.synthetic_batch(1, seeded())
    changed = tokens.clone()
    changed[0, 40] = 255
    model = both.build_model()
    with torch.no_grad():
        assert (model(tokens, places) != model(changed, places)).any(dim=2).all()
        causal = gpt.Architecture(size="nano").build_model()
        before, after = causal(tokens), causal(changed)
    torch.testing.assert_close(before[0, :40], after[0, :40])
    assert (before[0, 40:] != after[0, 40:]).any(dim=1).all()


def test_gpt_predicts_the_token_that_follows() -> None:
    tokens, targets = gpt.Architecture(size="nano").synthetic_batch(3, seeded())
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_dlrm_gradients_are_dense_or_sparse() -> None:
    gradients = []
    for sparse in (False, True):
        made = architecture.load_architecture(
            f"dlrm:dense=4,tables=3,rows=10,sparse={str(sparse).lower()}"
        )
        (dense, indices), clicked = made.synthetic_batch(2, seeded())
        torch.manual_seed(0)
        model = made.build_model()
        torch.autograd.backward(made.loss(model(dense, indices), clicked))
        gradient = model.tables[0].weight.grad
        assert gradient.is_sparse is sparse
        gradients.append(gradient.to_dense())
    torch.testing.assert_close(*gradients)


def test_linear_targets_are_the_sums_of_a_known_matrix() -> None:
    expected = torch.tensor([[-2.0, -1, 0, 1], [2, -2, -1, 0]])
    assert torch.equal(linear.true_weight(4, 2), expected)
    inputs, targets = linear.Architecture().synthetic_batch(64, seeded())
    assert torch.equal(targets, inputs @ expected.T + 1)
