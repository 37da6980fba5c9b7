"""Plain values survive as bytes, and other bytes become nothing but an error."""

from __future__ import annotations

import math
import pickle
import struct
import sys
import tracemalloc
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.parallel.plain_values import DEEPEST, DTYPES, NotPlain, from_bytes, to_bytes

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**1000), 2**1000)
    | st.floats(allow_nan=False)
    | st.text()
)
KEYS = st.integers(-(2**63), 2**63 - 1) | st.text() | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bytes as a tensor of any plain dtype and shape."""
    dtype = draw(st.sampled_from([dtype for dtype in DTYPES if dtype is not None]))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        content = bytes(byte & 1 for byte in content)
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8) if size else torch.empty(0)
    return flat.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)


@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    found = from_bytes(to_bytes(value))
    assert repr(found) == repr(value)


@given(tensors())
def test_any_tensor_comes_back_bit_for_bit(tensor: torch.Tensor) -> None:
    [found] = from_bytes(to_bytes([tensor]))
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    bits, expected = (
        t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in (found, tensor)
    )
    assert bits == expected


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


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch plans to do without them
        return torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        b"bytes",
        torch.eye(2).to_sparse(),
        {"a": print},
        quantised(),
        {2**64: None},
        {(1, 2): None},
        {1.5: None},
        2**1024,
    ],
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain, match="for a message, expected"):
        to_bytes(value)


def test_what_is_nested_too_deep_is_refused_by_both_sides() -> None:
    deepest = nested(DEEPEST)
    assert from_bytes(to_bytes(deepest)) == deepest
    with pytest.raises(NotPlain, match=f"nested more than {DEEPEST} deep"):
        to_bytes([deepest])
    with pytest.raises(NotPlain, match=f"nested more than {DEEPEST} deep"):
        from_bytes(LIST_OF_ONE + to_bytes(deepest))


LIST_OF_ONE = b"l" + struct.pack("<I", 1)


def read_or_refused(data: bytes) -> None:
    """Reading takes no more calls and memory than a multiple of the bytes, whatever they are."""
    calls = 0
    message = ""

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    tracemalloc.start()
    sys.setprofile(count)
    try:
        from_bytes(data)
    except NotPlain as error:
        message = str(error)
    finally:
        sys.setprofile(None)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert "\n" not in message
    assert len(message) < 200
    assert calls <= 30 * len(data) + 300
    assert most <= 20 * len(data) + 20_000


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    read_or_refused(data)


@given(VALUES, st.data())
def test_a_message_that_was_cut_or_changed_is_a_value_or_an_error(
    value: Any, data: st.DataObject
) -> None:
    message = bytearray(to_bytes([value, torch.arange(3)]))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= data.draw(st.integers(1, 255))
    inserted = message[:place] + data.draw(st.binary(max_size=9)) + message[place:]
    for hostile in (bytes(message), bytes(message[:place]), bytes(inserted)):
        read_or_refused(hostile)


def members(letter: bytes, count: int, content: bytes) -> bytes:
    return letter + struct.pack("<I", count) + content


def tensor_head(code: int, shape: list[int]) -> bytes:
    head = bytes([code, len(shape)]) + struct.pack(f"<{len(shape)}Q", *shape)
    return b"x" + head.ljust(64, b"\0")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(members(b"l", 4_000, members(b"l", 0, b"") * 4_000), id="empty lists"),
        pytest.param(members(b"t", 4_000, members(b"d", 0, b"") * 4_000), id="empty dicts"),
        pytest.param(members(b"l", 4_000, b"N" * 4_000), id="nothing often"),
        pytest.param(
            members(b"l", 4_000, members(b"s", 2, b"\xc4\x80") * 4_000), id="short wide texts"
        ),
        pytest.param(
            members(
                b"d",
                4_000,
                b"".join(b"i" + struct.pack("<q", n << 42) + b"N" for n in range(4_000)),
            ),
            id="keys whose low bits are equal",
        ),
        pytest.param(members(b"s", 4_000, b"x" * 3_999 + b"\xff"), id="broken text"),
        pytest.param(members(b"l", 1, b"") * 4_000, id="deep nesting"),
        pytest.param(members(b"l", 2**32 - 1, b"N" * 1000), id="many members announced"),
        pytest.param(b"I\xff" + b"\xff" * 255, id="a long integer"),
        pytest.param(tensor_head(0, [2**20] * 100), id="100 dimensions"),
    ],
)
def test_reading_takes_time_and_memory_in_proportion(content: bytes) -> None:
    read_or_refused(content)


def test_a_tensor_without_elements_takes_a_part_of_its_memory_in_a_message() -> None:
    """One takes some 600 bytes of memory, most of which Python does not see."""
    assert len(to_bytes(torch.empty(0))) >= 64


class Harmful:
    """Its pickle calls a function."""

    called = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Harmful, "called", True)


def test_a_pickle_is_not_executed() -> None:
    pickled = pickle.dumps(Harmful())
    for hostile in (pickled, b"s" + struct.pack("<I", len(pickled)) + pickled, b"x" + pickled):
        with pytest.raises(NotPlain):
            from_bytes(hostile)
    assert not Harmful.called


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"?", id="an unknown letter"),
        pytest.param(b"NN", id="two values"),
        pytest.param(tensor_head(1, [10**12]), id="elements that are not there"),
        pytest.param(tensor_head(1, [2**62, 4, 0]), id="sizes beyond 64 bits beside a zero"),
        pytest.param(tensor_head(1, [2**63]), id="a size beyond 63 bits"),
        pytest.param(tensor_head(len(DTYPES), [1]) + bytes(16), id="an unknown dtype"),
        pytest.param(tensor_head(DTYPES.index(torch.bool), [2]) + b"\x01\x02", id="a boolean of 2"),
        pytest.param(members(b"d", 1, b"fxxxxxxxxN"), id="a float as key"),
        pytest.param(members(b"d", 1, members(b"t", 0, b"") + b"N"), id="a tuple as key"),
        pytest.param(
            members(b"d", 1, b"I\x09" + (2**61 - 1 << 8).to_bytes(9, "little") + b"N"),
            id="an integer as key that collides with 0",
        ),
        pytest.param(members(b"d", 2, b"TNTN"), id="a key twice"),
    ],
)
def test_a_description_of_what_is_not_there_is_refused(content: bytes) -> None:
    with pytest.raises(NotPlain):
        from_bytes(content)


def test_no_dtype_is_one_of_those_that_torch_crashes_on() -> None:
    held = [dtype for dtype in DTYPES if dtype is not None]
    assert len(held) >= 18
    assert not any(str(dtype).startswith(("torch.q", "torch.bits")) for dtype in held)
