"""A double of torch.cuda that records the calls of it, and tensors that seem to be on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from dpbench.parallel import devices

GPU = torch.device("cuda:1")


@dataclass
class RecordingCuda:
    """Stands for the module torch.cuda where a package has all its calls of it in one module.

    `now` is the clock of the devices, which only tests advance, in seconds; `peak` has the largest
    allocation of each.
    """

    calls: list[str] = field(default_factory=list)
    now: float = 0.0
    allocated: int = 0
    peak: dict[torch.device, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.comm = self
        GpuTensor.calls = self.calls

    def synchronize(self, device: torch.device) -> None:
        self.calls.append(f"synchronize {device}")

    def set_device(self, device: torch.device) -> None:
        self.calls.append(f"set_device {device}")

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return GPU.index

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=str(device.index))

    def current_stream(self, device: torch.device) -> RecordedStream:
        return RecordedStream(f"stream of {device}", self)

    def Stream(self, *, device: torch.device) -> RecordedStream:  # noqa: N802 - torch's name
        return RecordedStream(f"side stream of {device}", self)

    @contextmanager
    def stream(self, stream: RecordedStream) -> Iterator[None]:
        self.calls.append(f"begin {stream}")
        yield
        self.calls.append(f"end {stream}")

    def Event(  # noqa: N802 - torch's name
        self, *, enable_timing: bool = False, blocking: bool = False
    ) -> RecordedEvent:
        assert enable_timing != blocking
        return RecordedEvent(self)

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.calls.append(f"reset_peak {device}")
        self.peak[device] = self.allocated

    def max_memory_allocated(self, device: torch.device | None = None) -> int:
        self.calls.append(f"read_peak {device}")
        return self.peak.get(device or GPU, 0)

    def max_memory_reserved(self, device: torch.device) -> int:
        return 2 * self.peak.get(device, 0)

    def reduce_add_coalesced(
        self, inputs: Sequence[Sequence[Tensor]], destination: int
    ) -> tuple[Tensor, ...]:
        sums = tuple(torch.stack(alike).sum(0) for alike in zip(*inputs, strict=True))
        self.calls.append(f"sum {len(sums)} tensors of {len(inputs)} GPUs to {destination}")
        return sums


@dataclass
class RecordedStream:
    name: str
    cuda: RecordingCuda

    def __str__(self) -> str:
        return self.name

    def wait_stream(self, other: RecordedStream) -> None:
        self.cuda.calls.append(f"{self} waits for {other}")

    def wait_event(self, event: RecordedEvent) -> None:
        self.cuda.calls.append(f"{self} waits for the event")

    def record_event(self) -> RecordedEvent:
        event = RecordedEvent(self.cuda)
        event.record(self)
        return event


@dataclass
class RecordedEvent:
    cuda: RecordingCuda
    at: float = 0.0

    def record(self, stream: RecordedStream) -> None:
        self.cuda.calls.append(f"record on {stream}")
        self.at = self.cuda.now

    def synchronize(self) -> None:
        self.cuda.calls.append("wait for the event")

    def elapsed_time(self, end: RecordedEvent) -> float:
        return 1e3 * (end.at - self.at)


class GpuTensor(Tensor):
    """A tensor of the host that says that it is on a GPU; copies of it are among the calls."""

    calls: ClassVar[list[str]]
    is_cpu, is_cuda, device = False, True, GPU  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        self.calls.append(f"{stream} uses the tensor")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "copy_":
            cls.calls.append("copy to the GPU" if isinstance(args[0], cls) else "copy to the host")
        return super().__torch_function__(func, types, args, kwargs or {})


class HostTensor(Tensor):
    """A tensor of the host that a GPU gets where it is moved to one."""

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        GpuTensor.calls.append(f"copy to {args[0]}")
        copied = self.as_subclass(Tensor).to("cpu", *args[1:], **kwargs)
        return copied.as_subclass(GpuTensor)


def put_into_parallel(cuda: RecordingCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `dpbench.parallel` call this double."""
    devices.side_stream.cache_clear()  # it may be of another double
    monkeypatch.setattr(devices, "cuda", cuda)
    monkeypatch.setattr(devices, "pinned", lambda numel, dtype: torch.empty(numel, dtype=dtype))
