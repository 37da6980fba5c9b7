"""Hashes of tensors, and tensors that are whole already or gathered from shards."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from dpbench.measure.checksums import tensors_checksum, whole


def test_a_checksum_is_the_hash_of_the_bytes_in_order() -> None:
    content = struct.pack("<3f", 1.0, 2.0, -0.5) + struct.pack("<q", 7)
    expected = hashlib.blake2b(content, digest_size=8).hexdigest()
    tensors = [torch.tensor([[1.0, 2.0, -0.5]]), torch.tensor(7)]
    assert tensors_checksum(tensors) == expected
    assert len(expected) == 16


def test_a_single_bit_makes_another_checksum() -> None:
    ones = torch.ones(1000, dtype=torch.float64)
    nearly = ones.clone()
    nearly[500] = torch.nextafter(ones[500], torch.tensor(2.0, dtype=torch.float64))
    assert tensors_checksum([nearly]) != tensors_checksum([ones])
    assert tensors_checksum([torch.tensor(-0.0)]) != tensors_checksum([torch.tensor(0.0)])


def test_the_order_of_tensors_counts_and_their_place_in_memory_does_not() -> None:
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert tensors_checksum([one, two]) != tensors_checksum([two, one])
    table = torch.arange(12.0).reshape(3, 4)
    assert tensors_checksum([table.t()]) == tensors_checksum([table.t().contiguous()])
    assert tensors_checksum([table.t()]) != tensors_checksum([table])


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64]
)
def test_every_kind_of_tensor_has_one(dtype: torch.dtype) -> None:
    zeros, ones = torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)
    assert tensors_checksum([zeros]) != tensors_checksum([ones])
    assert tensors_checksum([ones]) == tensors_checksum([ones.clone()])


def test_a_parameter_is_hashed_as_its_values() -> None:
    values = torch.tensor([1.0, 2.0])
    assert tensors_checksum([torch.nn.Parameter(values.clone())]) == tensors_checksum([values])


def test_nothing_has_a_checksum_too() -> None:
    assert tensors_checksum([]) == tensors_checksum([torch.empty(0)])
    assert tensors_checksum([]) != tensors_checksum([torch.zeros(1)])


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
