from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from architectures import transformer
from dpbench import architecture
from tests.architectures.learning import counted_flops, loss_before_and_after


@pytest.fixture
def decoder() -> architecture.Architecture:
    return architecture.load("transformer")


def _batch(decoder: architecture.Architecture, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return decoder.synthetic_batch(n, torch.Generator().manual_seed(0))


def test_it_has_the_documented_number_of_parameters(decoder: architecture.Architecture) -> None:
    parameters = sum(p.numel() for p in decoder.build_model().parameters())
    assert parameters == transformer.PARAMETERS == 3_241_472


def test_it_turns_tokens_into_logits_of_every_next_token(
    decoder: architecture.Architecture,
) -> None:
    tokens, targets = _batch(decoder, 3)
    assert tokens.shape == targets.shape == (3, 64)
    assert tokens.dtype == targets.dtype == torch.int64
    assert decoder.build_model()(tokens).shape == (3, 64, 256)


def test_a_target_is_the_token_that_follows(decoder: architecture.Architecture) -> None:
    tokens, targets = _batch(decoder, 3)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_at_most_two_tokens_follow_a_token(decoder: architecture.Architecture) -> None:
    tokens, targets = _batch(decoder, 50)
    pairs = set(zip(tokens.flatten().tolist(), targets.flatten().tolist(), strict=True))
    followers = [sum(first == token for first, _ in pairs) for token in {a for a, _ in pairs}]
    assert max(followers) == 2


def test_equal_generators_give_equal_sequences_and_one_generator_new_ones(
    decoder: architecture.Architecture,
) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (decoder.synthetic_batch(4, generator)[0] for _ in range(2))
    assert torch.equal(first, _batch(decoder, 4)[0])
    assert not torch.equal(first, second)


def test_no_token_sees_a_later_one(decoder: architecture.Architecture) -> None:
    model = decoder.build_model()
    tokens, _ = _batch(decoder, 1)
    changed = tokens.clone()
    changed[0, 40] = 255
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[0, :40], after[0, :40])
    assert (before[0, 40:] != after[0, 40:]).any(dim=1).all()


def test_the_output_layer_is_the_token_embedding(decoder: architecture.Architecture) -> None:
    model = decoder.build_model()
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes.count((256, 256)) == 1 + 4  # the tokens, and a projection in each layer
    with torch.no_grad():
        model.tokens.weight.zero_()
        assert not model(_batch(decoder, 1)[0]).any()


def test_its_loss_is_the_mean_cross_entropy_over_tokens(
    decoder: architecture.Architecture,
) -> None:
    outputs = torch.log(torch.tensor([[[3.0, 1.0], [1.0, 1.0]]]))  # probabilities 3/4 and 1/2
    loss = decoder.loss(outputs, torch.tensor([[0, 0]]))
    torch.testing.assert_close(loss, torch.log(torch.tensor(8 / 3)) / 2)


def test_its_flops_are_those_that_torch_counts(decoder: architecture.Architecture) -> None:
    """Counted where attention is written in matrix products; torch counts no fused one on a CPU."""
    assert transformer.FORWARD_FLOPS == 427_819_008
    with sdpa_kernel(SDPBackend.MATH):
        assert counted_flops(decoder, backward=False) == transformer.FORWARD_FLOPS
        assert counted_flops(decoder, backward=True) == decoder.flops_per_item


def test_it_learns_the_synthetic_text(decoder: architecture.Architecture) -> None:
    before, after = loss_before_and_after(decoder, steps=6)
    assert before == pytest.approx(5.545, abs=0.1)  # log 256: it knows nothing
    assert after < 0.7 * before


def test_its_items_are_sequences_and_its_default_dataset_is_synthetic(
    decoder: architecture.Architecture,
) -> None:
    names = (decoder.name, decoder.item, decoder.default_dataset)
    assert names == ("transformer", "sequences", "synthetic")
