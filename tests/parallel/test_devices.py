from __future__ import annotations

import pytest
import torch

from dpbench.parallel.devices import parse_device, parse_devices


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_cuda_devices_are_named_by_index_string_or_object() -> None:
    expected = (torch.device("cuda:0"), torch.device("cuda:1"))
    assert parse_devices(None) == expected
    assert parse_devices([0, "cuda:1"]) == expected
    assert parse_devices([torch.device("cuda"), 1]) == expected


@pytest.mark.usefixtures("two_gpus")
def test_cuda_without_an_index_is_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert parse_device("cuda") == parse_device(torch.device("cuda")) == torch.device("cuda:1")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("ids", "kind", "value"),
    [
        ([], ValueError, r"\[\]"),
        ([-1], ValueError, "-1"),
        (["cuda:2"], ValueError, "cuda:2"),
        ([0, "cuda:0"], ValueError, "cuda:0"),
        (["cuda:0", "cpu"], ValueError, r"\['cuda:0', 'cpu'\], expected CUDA devices, each"),
        (["gpu"], ValueError, "gpu"),
        (["mps"], ValueError, "mps"),
        ([True], TypeError, "True"),
        ("cpu", TypeError, "cpu"),
    ],
)
def test_bad_devices_are_refused_with_their_value(
    ids: list[object], kind: type[Exception], value: str
) -> None:
    with pytest.raises(kind, match=value):
        parse_devices(ids)  # type: ignore[arg-type]


def test_without_cuda_the_default_names_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=r'CUDA_VISIBLE_DEVICES=7\).*\["cpu"\] \* n'):
        parse_devices(None)
