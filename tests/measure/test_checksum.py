"""A checksum is the hash of the bytes of whole tensors in order."""

from __future__ import annotations

import hashlib
import struct

import torch

from dpbench.measure.checksum import full_tensor, tensors_checksum


def test_a_checksum_is_the_hash_of_the_bytes_in_order() -> None:
    content = struct.pack("<3f", 1.0, 2.0, -0.5) + struct.pack("<q", 7)
    tensors = [torch.nn.Parameter(torch.tensor([[1.0, 2.0, -0.5]])), torch.tensor(7)]
    assert tensors_checksum(tensors) == hashlib.blake2b(content, digest_size=8).hexdigest()
    assert tensors_checksum([]) == tensors_checksum([torch.empty(0)])


def test_a_single_bit_and_the_order_change_it_and_the_memory_layout_does_not() -> None:
    ones = torch.ones(1000, dtype=torch.float64)
    nearly = ones.clone()
    nearly[500] = torch.nextafter(ones[500], torch.tensor(2.0, dtype=torch.float64))
    assert tensors_checksum([nearly]) != tensors_checksum([ones])
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert tensors_checksum([one, two]) != tensors_checksum([two, one])
    table = torch.arange(12.0).reshape(3, 4)
    assert tensors_checksum([table.t()]) == tensors_checksum([table.t().contiguous()])
    conjugate = torch.tensor([1 + 2j]).conj()
    assert tensors_checksum([conjugate]) == tensors_checksum([torch.tensor([1 - 2j])])


class Shard(torch.Tensor):
    """The part that a rank holds of four numbers."""

    def full_tensor(self) -> torch.Tensor:
        return torch.arange(4.0)


def test_a_shard_has_the_checksum_of_the_whole_tensor() -> None:
    shard = torch.zeros(2).as_subclass(Shard)
    assert torch.equal(full_tensor(shard), torch.arange(4.0))
    assert tensors_checksum([shard]) == tensors_checksum([torch.arange(4.0)])
