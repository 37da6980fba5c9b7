"""Plain values to memory and to files and back, and files of strangers."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
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


def with_dtype(value: Any, before: bytes, after: bytes) -> bytes:
    """The file with another name of a type, its checksums made anew."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(value))) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member).replace(before, after))
    return changed.getvalue()


def doubled(depth: int) -> Any:
    part: Any = []
    for _ in range(depth):
        part = [part, part]
    return part


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_tensors_that_crash_or_take_more_than_the_file_are_refused() -> None:
    bytes_ = with_dtype(torch.arange(4, dtype=torch.uint8), b"ByteStorage", b"QUInt8Storage")
    assert reason(bytes_) == "it holds a tensor of torch.quint8"
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        assert reason(saved(tensor)) == "it holds a tensor that is not dense"
    assert reason(saved(torch.zeros(1).expand(10**6))) == "it holds the same parts too often"
    one = torch.zeros(1000)
    assert reason(saved([one] * 100)) == "it holds the same parts too often"
    assert len(archive.loads(saved([one] * 4), "here")) == 4


def test_lists_that_hold_each_other_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for hostile in (doubled(60), endless, [endless] * 50):
        assert reason(saved(hostile)) == "it holds the same parts too often"


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
    assert reason(b"") == "the file is empty"
    assert reason(b"loss: 0.3\n") == "this is no file of torch.save"
    assert reason(pickle.dumps({"a": 1})) == "this is no file of torch.save"
    assert reason(WHOLE[:-30]) == "the file is cut off or damaged"
    place = WHOLE.index(VALUE["weight"].view(torch.uint8).numpy().tobytes())
    damaged = WHOLE[:place] + b"\xff" + WHOLE[place + 1 :]
    assert reason(damaged) == "its part 'archive/data/0' is damaged: the checksum does not hold"


@pytest.mark.parametrize("whole_file", [True, False])
def test_code_in_a_file_is_not_executed(tmp_path: Path, whole_file: bool) -> None:
    planted = tmp_path / "planted"
    hostile = Command(planted)
    words = reason(saved({"model": hostile}) if whole_file else pickle.dumps(hostile))
    assert "was not executed" in words or words == "this is no file of torch.save"
    assert not planted.exists()
    pickle.loads(pickle.dumps(hostile))  # the same bytes elsewhere
    assert planted.exists()


def test_a_class_is_named_and_refused() -> None:
    words = reason(saved({"model": torch.nn.Linear(1, 1)}))
    assert words == (
        "it holds torch.nn.modules.linear.Linear, which is more than plain values, and was not "
        "executed"
    )


def test_a_program_and_a_compressed_file_are_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as program:
        program.writestr("net/constants.pkl", b"")
    assert reason(file.getvalue()) == "it holds a TorchScript program"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data.pkl", bytes(10**6))
    assert reason(file.getvalue()) == "it is compressed, which torch.save never does"


def test_a_part_that_calls_itself_a_folder_is_refused() -> None:
    """torch would take whatever lies in memory for its content."""
    damaged = bytearray(WHOLE)
    damaged[WHOLE.rindex(b"PK\x01\x02") + 38] = 0x10
    assert reason(bytes(damaged)) == "its table of parts is damaged"


def test_names_in_a_file_reach_no_terminal() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as hostile:
        hostile.writestr("\x1b]0;owned\x07/data.pkl", b"x")
    damaged = bytearray(file.getvalue())
    damaged[damaged.index(b"data.pkl") + 8] ^= 1
    assert "\\x1b]0;owned\\x07" in reason(bytes(damaged))


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
