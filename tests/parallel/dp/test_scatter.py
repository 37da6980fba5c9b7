"""Packed sequences are split by sequence, and an RNN over replicas learns as without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence, unpack_sequence

from dpbench.parallel import gather, scatter
from tests.parallel.dp.modules import F64, assert_same, gradients, parallel


def sequences(lengths: list[int], features: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, features, generator=generator, dtype=F64) for n in lengths]


def packed(lengths: list[int], *, in_order: bool = False) -> PackedSequence:
    return pack_sequence(sequences(lengths), enforce_sorted=in_order)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=7), replicas=st.integers(1, 4))
def test_gather_undoes_scatter(lengths: list[int], replicas: int) -> None:
    whole = packed(lengths)
    parts = scatter(whole, ["cpu"] * replicas)
    assert sum(int(part.batch_sizes[0]) for part in parts) == len(lengths)
    found = gather(parts, "cpu")
    assert found.batch_sizes.device.type == "cpu"
    for one, other in zip(unpack_sequence(found), sequences(lengths), strict=True):
        assert torch.equal(one, other)


def test_sequences_that_were_sorted_stay_without_indices() -> None:
    parts = scatter(packed([5, 4, 2, 2, 1], in_order=True), ["cpu"] * 2)
    assert all(part.sorted_indices is None for part in parts)
    assert [part.batch_sizes.tolist() for part in parts] == [[3, 3, 2, 2, 1], [2, 1]]
    assert gather(parts, "cpu").sorted_indices is None


def test_other_tensors_must_have_as_many_samples_as_there_are_sequences() -> None:
    inputs = (packed([3, 1, 2]), torch.arange(3))
    first, second = scatter(inputs, ["cpu"] * 2)
    assert (first[1].tolist(), second[1].tolist()) == ([0, 1], [2])
    with pytest.raises(ValueError, match=r"disagree on the size of dim 0: \[3, 4\]"):
        scatter((packed([3, 1, 2]), torch.arange(4)), ["cpu"] * 2)


class Reader(nn.Module):
    """An RNN over packed sequences, with the packed outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.GRU(3, 4, dtype=F64)

    def forward(self, words: PackedSequence, scale: Tensor) -> dict[str, Any]:
        output, _ = self.rnn(words)
        last, _ = pad_packed_sequence(output, batch_first=True)
        return {"output": output, "score": last.sum((1, 2)) * scale}


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_an_rnn_over_replicas_learns_as_without_them(replicas: int, in_order: bool) -> None:
    lengths = [6, 4, 4, 3, 1] if in_order else [4, 6, 1, 4, 3]
    scale = torch.arange(1, 6, dtype=F64)
    alone, several = Reader(), Reader()
    expected = alone(packed(lengths, in_order=in_order), scale)
    found = parallel(several, replicas)(packed(lengths, in_order=in_order), scale)
    assert isinstance(found["output"], PackedSequence)
    for one, other in zip(
        unpack_sequence(found["output"]), unpack_sequence(expected["output"]), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    for outputs in (expected, found):
        (outputs["score"].pow(2).sum() + outputs["output"].data.pow(2).sum()).backward()
    assert_same(gradients(several), gradients(alone))
