"""A double of torch.cuda that records the calls of it, for tests without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

GPU = torch.device("cuda:1")


@dataclass
class RecordingCuda:
    """Stands for the module torch.cuda in `dpbench.measure.device`.

    `now` is the clock of the device, which only tests advance, in seconds.
    """

    calls: list[str] = field(default_factory=list)
    now: float = 0.0
    allocated: int = 0
    peak: int = 0

    def synchronize(self, device: torch.device) -> None:
        self.calls.append(f"synchronize {device}")

    def set_device(self, device: torch.device) -> None:
        self.calls.append(f"set_device {device}")

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return GPU.index

    def current_stream(self, device: torch.device) -> str:
        return f"stream of {device}"

    def Event(self, *, enable_timing: bool) -> RecordedEvent:  # noqa: N802 - torch's name
        assert enable_timing
        return RecordedEvent(self)

    def memory_allocated(self, device: torch.device) -> int:
        self.calls.append(f"memory_allocated {device}")
        return self.allocated

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.calls.append(f"reset_peak {device}")
        self.peak = self.allocated

    def max_memory_allocated(self, device: torch.device | None = None) -> int:
        self.calls.append(f"read_peak {device}")
        return self.peak

    def max_memory_reserved(self, device: torch.device) -> int:
        return 2 * self.peak


@dataclass
class RecordedEvent:
    cuda: RecordingCuda
    at: float = 0.0

    def record(self, stream: str) -> None:
        self.cuda.calls.append(f"record on {stream}")
        self.at = self.cuda.now

    def elapsed_time(self, end: RecordedEvent) -> float:
        return 1e3 * (end.at - self.at)
