from __future__ import annotations

import pytest
import torch
from dpbench.architectures.gpt import Architecture
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpbench import architecture
from dpbench.architectures import gpt
from tests.architectures import on_meta
from tests.architectures.learning import SAMPLES, counted_flops, loss_before_and_after

NANO = Architecture(size="nano")


def _batch(of: Architecture, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return of.synthetic_batch(n, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("size", "parameters"), [("nano", 100_272), ("micro", 3_241_472), ("gpt2", 124_439_808)]
)
def test_it_has_the_published_number_of_parameters(size: str, parameters: int) -> None:
    """Of gpt2 that of the checkpoint; of micro 65,536 in the tokens, 16,384 in the positions,
    789,760 in each layer and 512 in the last norm."""
    made = architecture.load(f"gpt:size={size}")
    assert on_meta.parameter_count(made) == gpt.PARAMETERS[size] == parameters


def test_a_number_given_by_itself_goes_before_that_of_the_size() -> None:
    made = Architecture(size="gpt2", layers=2, context=32, vocabulary=100)
    size = made.size
    assert (size.layers, size.width, size.heads) == (2, 768, 12)
    assert (size.context, size.vocabulary) == (32, 100)
    assert (made.items_per_sample, made.classes) == (32, 100)


def test_a_size_that_no_model_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^size: got 'big', expected nano, micro, gpt2$"):
        Architecture(size="big")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^width: got 256, expected a multiple of 5$"):
        Architecture(heads=5)
    with pytest.raises(ValueError, match=r"^layers: got 0, expected at least 1$"):
        Architecture(layers=0)
    with pytest.raises(ValueError, match=r"^vocabulary: got 31, expected at least 32$"):
        Architecture(vocabulary=31)


def test_it_turns_tokens_into_logits_of_every_next_token() -> None:
    tokens, targets = _batch(NANO, 3)
    assert tokens.shape == targets.shape == (3, 64)
    assert tokens.dtype == targets.dtype == torch.int64
    assert NANO.build_model()(tokens).shape == (3, 64, 256)


def test_a_target_is_the_token_that_follows() -> None:
    tokens, targets = _batch(NANO, 3)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_equal_random_states_build_equal_models() -> None:
    torch.manual_seed(7)
    first = NANO.build_model().state_dict()
    torch.manual_seed(7)
    second = NANO.build_model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_no_token_sees_a_later_one() -> None:
    model = NANO.build_model()
    tokens, _ = _batch(NANO, 1)
    changed = tokens.clone()
    changed[0, 40] = 255
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[0, :40], after[0, :40])
    assert (before[0, 40:] != after[0, 40:]).any(dim=1).all()


def test_the_output_layer_is_the_token_embedding() -> None:
    model = NANO.build_model()
    assert [tuple(p.shape) for p in model.parameters()].count((256, 48)) == 1
    with torch.no_grad():
        model.tokens.weight.zero_()
        assert not model(_batch(NANO, 1)[0]).any()


def test_its_loss_is_the_mean_cross_entropy_over_tokens() -> None:
    outputs = torch.log(torch.tensor([[[3.0, 1.0], [1.0, 1.0]]]))  # probabilities 3/4 and 1/2
    loss = NANO.loss(outputs, torch.tensor([[0, 0]]))
    torch.testing.assert_close(loss, torch.log(torch.tensor(8 / 3)) / 2)


def test_its_flops_are_those_that_torch_counts() -> None:
    """Counted where attention is written in matrix products; torch counts no fused one on a CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        assert counted_flops(NANO, backward=False) == gpt.forward_flops(NANO.size)
        assert counted_flops(NANO, backward=True) == 64 * NANO.flops_per_item
    assert SAMPLES > 1
    assert gpt.forward_flops(Architecture().size) == 427_819_008
    assert Architecture().flops_per_item == 3 * 427_819_008 / 64


def test_it_learns_the_synthetic_text() -> None:
    before, after = loss_before_and_after(NANO, steps=8)
    assert before == pytest.approx(5.545, abs=0.1)  # log 256: it knows nothing
    assert after < 0.9 * before


def test_its_items_are_tokens_and_its_default_dataset_is_synthetic() -> None:
    made = Architecture()
    assert (made.name, made.item, made.items_per_sample) == ("gpt", "tokens", 64)
    assert made.default_dataset == "synthetic"
