from __future__ import annotations

import pytest
import torch
from dpbench.architectures.bert import Architecture
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpbench import architecture
from dpbench.architectures import bert
from tests.architectures import on_meta
from tests.architectures.learning import counted_flops, loss_before_and_after

SMALL = Architecture(layers=2, width=32, heads=2, dropout=0.0)
POOLER = 768 * 768 + 768


def _batch(of: Architecture, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    (tokens, places), targets = of.synthetic_batch(n, torch.Generator().manual_seed(0))
    return tokens, places, targets


def test_its_base_and_a_pooler_have_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        encoder = bert.Encoder(bert.SIZES["base"], dropout=0.1)
    assert sum(p.numel() for p in encoder.parameters()) + POOLER == 109_482_240


@pytest.mark.parametrize(("size", "parameters"), [("micro", 3_308_544), ("base", 109_514_298)])
def test_with_its_head_it_has_the_documented_number_of_parameters(
    size: str, parameters: int
) -> None:
    made = architecture.load(f"bert:size={size}")
    assert on_meta.parameter_count(made) == bert.PARAMETERS[size] == parameters


def test_a_number_given_by_itself_goes_before_that_of_the_size() -> None:
    made = Architecture(size="base", layers=1, context=128)
    assert (made.size.layers, made.size.context, made.size.width) == (1, 128, 768)
    assert (made.items_per_sample, made.predicted, made.mask) == (128, 19, 30_521)


def test_options_that_it_cannot_use_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^size: got 'large', expected micro, base$"):
        Architecture(size="large")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^vocabulary: got 32, expected at least 33$"):
        Architecture(vocabulary=32)  # no token is left for the mask
    with pytest.raises(ValueError, match=r"^dropout: got 1\.0, expected at least 0 and below 1$"):
        Architecture(dropout=1.0)


def test_every_sequence_has_as_many_tokens_to_predict() -> None:
    tokens, places, targets = _batch(SMALL, 50)
    assert tokens.shape == (50, 64)
    assert places.shape == targets.shape == (50, 9)  # 15 % of 64
    assert (places.diff(dim=1) > 0).all()  # none twice
    assert places.min() == 0
    assert places.max() == 63
    assert places.unique().tolist() == list(range(64))


def test_of_the_tokens_to_predict_most_are_masked_and_the_others_are_not_touched() -> None:
    tokens, places, targets = _batch(SMALL, 500)
    shown = tokens.gather(1, places)
    assert (shown == SMALL.mask).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (shown == targets).float().mean() == pytest.approx(0.1, abs=0.03)
    others = tokens.scatter(1, places, 0)
    assert others.max() < 32  # of the text's alphabet
    assert targets.max() < 32


def test_it_sees_what_stands_before_and_behind() -> None:
    model = SMALL.build_model()
    tokens, places, _ = _batch(SMALL, 1)
    changed = tokens.clone()
    changed[0, 40] = 255
    with torch.no_grad():
        before, after = model(tokens, places), model(changed, places)
    assert before.shape == (1, 9, 256)
    assert (before != after).any(dim=2).all()


def test_its_dropout_is_of_training_only() -> None:
    model = Architecture(layers=1, width=32, heads=2).build_model()
    tokens, places, _ = _batch(SMALL, 2)
    with torch.no_grad():
        assert not torch.equal(model(tokens, places), model(tokens, places))
        model.eval()
        assert torch.equal(model(tokens, places), model(tokens, places))


def test_every_parameter_is_trained() -> None:
    model = SMALL.build_model()
    tokens, places, targets = _batch(SMALL, 2)
    torch.autograd.backward(SMALL.loss(model(tokens, places), targets))
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_its_flops_are_those_that_torch_counts() -> None:
    """Counted where attention is written in matrix products; torch counts no fused one on a CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        assert counted_flops(SMALL, backward=False) == bert.forward_flops(SMALL.size, 9)
        assert counted_flops(SMALL, backward=True) == 64 * SMALL.flops_per_item


def test_it_learns_the_synthetic_text() -> None:
    before, after = loss_before_and_after(SMALL, steps=10)
    assert before == pytest.approx(5.545, abs=0.1)  # log 256: it knows nothing
    assert after < 0.9 * before


def test_its_items_are_tokens_and_its_default_dataset_is_synthetic() -> None:
    made = Architecture()
    assert (made.name, made.item, made.items_per_sample) == ("bert", "tokens", 64)
    assert made.default_dataset == "synthetic"
