"""Plain values to memory and to files and back, and files of strangers."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.errors import UsageError
from dpbench.training import archive
from dpbench.training.archive import HostBuffers
from tests.training.checkpoint_samples import same

VALUE = {
    "weight": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "counts": [torch.tensor(3), torch.tensor([True, False]), torch.tensor([1j])],
    "state": {0: {"step": 1.0, "betas": (0.9, 0.999)}, "none": None, "words": "α\n"},
}
WHOLE = archive.dumps(VALUE)


class Command:
    """As an attacker would write it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def reason(data: bytes) -> str:
    """The one line that is said of these bytes."""
    with pytest.raises(UsageError) as caught:
        archive.loads(data, "step-1.pt")
    words = str(caught.value)
    assert words.startswith("step-1.pt: ")
    assert words.isprintable()
    return words.removeprefix("step-1.pt: ")


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_plain_values_come_back_as_they_were() -> None:
    assert same(archive.loads(WHOLE, "here"), VALUE)


@given(st.integers(0, len(WHOLE) - 1))
@settings(max_examples=60)
def test_a_file_cut_off_anywhere_is_refused(length: int) -> None:
    assert reason(WHOLE[:length])


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@settings(max_examples=250)
def test_a_changed_byte_is_refused_or_changes_nothing(place: int, change: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[place] ^= change
    try:
        value = archive.loads(bytes(damaged), "here")
    except UsageError:
        return
    assert same(value, VALUE)  # a date or the padding between two parts


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_any_bytes_are_refused(data: bytes) -> None:
    assert reason(data)
    assert reason(b"PK\x03\x04" + data)


def test_what_is_wrong_is_said() -> None:
    no_archive = "it is damaged, or no file of torch.save (BadZipFile: File is not a zip file)"
    for data in (b"", b"loss: 0.3\n", pickle.dumps({"a": 1}), WHOLE[:-30]):
        assert reason(data) == no_archive
    place = WHOLE.index(VALUE["weight"].view(torch.uint8).numpy().tobytes())
    damaged = WHOLE[:place] + b"\xff" + WHOLE[place + 1 :]
    assert "a checksum does not hold" in reason(damaged)


@pytest.mark.parametrize("whole_file", [True, False])
def test_code_in_a_file_is_not_executed(tmp_path: Path, whole_file: bool) -> None:
    planted = tmp_path / "planted"
    hostile = Command(planted)
    words = reason(saved({"model": hostile}) if whole_file else pickle.dumps(hostile))
    assert "was not loaded" in words or "no file of torch.save" in words
    assert not planted.exists()
    pickle.loads(pickle.dumps(hostile))  # the same bytes elsewhere
    assert planted.exists()


def test_a_class_is_refused() -> None:
    words = reason(saved({"model": torch.nn.Linear(1, 1)}))
    assert words == "it holds more than tensors, numbers and texts, and was not loaded"


def test_a_part_that_calls_itself_a_folder_is_refused() -> None:
    """torch would take whatever lies in memory for its content."""
    damaged = bytearray(WHOLE)
    damaged[WHOLE.rindex(b"PK\x01\x02") + 38] = 0x10
    assert "a checksum does not hold" in reason(bytes(damaged))


def test_a_full_disk_is_an_oserror_with_its_reason() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        archive.dump(VALUE, Full())


def values(fill: float) -> dict[str, Any]:
    return {
        "weight": torch.full((4, 3), fill).t(),
        "half": torch.full((5,), fill, dtype=torch.bfloat16)[::2],
        "parameter": torch.nn.Parameter(torch.full((2,), fill)),
        "nested": [{0: torch.tensor(3)}, (torch.tensor([], dtype=torch.bool), None)],
        "numbers": [1, 1.5, "words", True],
    }


def test_a_copy_stays_when_the_original_changes() -> None:
    original = values(1.0)
    copied = HostBuffers().take(original)
    assert same(copied, values(1.0))
    with torch.no_grad():
        original["weight"].zero_()
        original["parameter"].zero_()
    assert same(copied, values(1.0))
    assert not copied["parameter"].requires_grad


def test_the_next_copy_takes_the_same_memory() -> None:
    host = HostBuffers()
    first = host.take(values(1.0))
    places = [first["weight"].data_ptr(), first["nested"][0][0].data_ptr()]
    second = host.take(values(2.0))
    assert same(second, values(2.0))
    assert [second["weight"].data_ptr(), second["nested"][0][0].data_ptr()] == places


def test_what_has_another_shape_or_kind_gets_memory_of_its_own() -> None:
    host = HostBuffers()
    host.take({"a": torch.zeros(2), "b": torch.zeros(2)})
    second = {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.float64)}
    assert same(host.take(second), second)


def test_a_view_takes_no_more_than_its_own_elements() -> None:
    row = HostBuffers().take({"row": torch.zeros(1000, 4)[7]})["row"]
    assert row.untyped_storage().nbytes() == 16


@pytest.mark.parametrize("odd", [np.float64(1.0), torch.float32, {1, 2}, print])
def test_what_is_not_plain_is_named(odd: object) -> None:
    with pytest.raises(TypeError, match=r"^groups\.0\.rate: got a .*; expected dicts, lists"):
        HostBuffers().take({"groups": [{"rate": odd}]})


@pytest.mark.gpu
def test_tensors_of_a_device_come_through_page_locked_memory() -> None:
    host = HostBuffers()
    on_device = {"weight": torch.randn(1000, 1000, device="cuda"), "step": torch.tensor(1.0)}
    copied = host.take(on_device)
    assert copied["weight"].is_pinned()
    assert not copied["step"].is_pinned()
    expected = on_device["weight"].cpu()
    on_device["weight"].zero_()
    assert torch.equal(copied["weight"], expected)
