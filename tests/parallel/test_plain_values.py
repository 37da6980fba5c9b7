"""Plain values survive as bytes, and other bytes become nothing but an error."""

from __future__ import annotations

import contextlib
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.parallel.plain_values import NotPlain, from_bytes, to_bytes

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.integers() | st.text() | st.booleans()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    found = from_bytes(to_bytes(value))
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.randn(3, 4).t(),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.empty(0, 3),
        torch.zeros(2, dtype=torch.float8_e4m3fn),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.dtype}",
)
def test_tensors_keep_elements_shape_and_dtype(tensor: torch.Tensor) -> None:
    state = {0: {"step": 3, "moments": [tensor, (tensor,)]}}
    found = from_bytes(to_bytes(state))
    for other in (found[0]["moments"][0], found[0]["moments"][1][0]):
        assert (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(other.to(torch.complex64), tensor.to(torch.complex64))


def test_numbers_that_json_lacks_come_back() -> None:
    found = from_bytes(to_bytes([math.inf, -math.inf, math.nan]))
    assert found[:2] == [math.inf, -math.inf]
    assert math.isnan(found[2])


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", torch.eye(2).to_sparse(), {"a": print}]
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain, match="for a message, expected"):
        to_bytes(value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    with contextlib.suppress(NotPlain):
        from_bytes(data)


@given(VALUES, st.data())
def test_a_message_that_was_cut_or_changed_is_a_value_or_an_error(
    value: Any, data: st.DataObject
) -> None:
    message = bytearray(to_bytes([value, torch.arange(3)]))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= data.draw(st.integers(1, 255))
    for hostile in (bytes(message), bytes(message[:place])):
        with contextlib.suppress(NotPlain):
            from_bytes(hostile)


class Harmful:
    """Its pickle calls a function."""

    called = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Harmful, "called", True)


def test_a_pickle_is_not_executed() -> None:
    for pickled in (pickle.dumps(Harmful()), (8).to_bytes(8, "little") + pickle.dumps(Harmful())):
        with pytest.raises(NotPlain):
            from_bytes(pickled)
    assert not Harmful.called


@pytest.mark.parametrize(
    "text",
    [
        b'{"tensor":["torch.float32",[1000000000000]]}',
        b'{"tensor":["torch.float32",[-1]]}',
        b'{"tensor":["torch.nothing",[1]]}',
        b'{"tensor":["torch.float32"]}',
        b'{"tensor":["torch.uint8",[1]],"dict":[]}',
        b'{"dict":[[[1],2]]}',
        b'{"other":[]}',
        b"{}",
        b"[" * 100_000,
        b"9" * 10_000,
    ],
    ids=lambda text: text[:45].decode(),
)
def test_a_description_of_what_is_not_there_is_refused(text: bytes) -> None:
    with pytest.raises(NotPlain):
        from_bytes(len(text).to_bytes(8, "little") + text)
