"""A tensor that is whole already is given back; shards are gathered."""

from __future__ import annotations

import torch

from dpbench.measure.checksums import tensors_checksum
from dpbench.measure.whole import whole


class Shard(torch.Tensor):
    """What a rank holds of four numbers."""

    def full_tensor(self) -> torch.Tensor:
        return torch.arange(4.0)


def test_a_whole_tensor_is_itself() -> None:
    tensor = torch.randn(3)
    assert whole(tensor) is tensor


def test_a_shard_becomes_the_tensor_and_has_its_checksum() -> None:
    shard = torch.zeros(2).as_subclass(Shard)
    assert torch.equal(whole(shard), torch.arange(4.0))
    assert tensors_checksum([shard]) == tensors_checksum([torch.arange(4.0)])
