"""A stand-in for torch.cuda on a machine without GPUs, which records what waits for what.

It has streams, events and tensors that compute on the CPU at once but belong to a device. Whatever
is done with such a tensor is an action on the current stream of its device. From streams, events
and what the host has waited for it is known which actions a real GPU could not start before which
others had ended: `precedes` says so. Two actions of which neither precedes the other may overlap on
a real GPU, whatever their order here.

    cuda = RecordedCuda()
    monkeypatch.setattr(module, "cuda", cuda)      # where the code under test has torch.cuda
    tensor = cuda.tensor(torch.ones(3), "cuda:1")
    ...
    assert cuda.precedes(cuda.only("to host"), cuda.only("to device"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Asking a tensor for these is nothing that a stream has to do.
_FREE = {
    "__get__",
    "__getitem__",
    "__set__",
    "as_strided",
    "data_ptr",
    "detach",
    "dim",
    "element_size",
    "is_complex",
    "is_conj",
    "is_contiguous",
    "is_floating_point",
    "is_inference",
    "is_neg",
    "is_same_size",
    "narrow",
    "numel",
    "requires_grad_",
    "reshape",
    "size",
    "split",
    "storage_offset",
    "stride",
    "unbind",
    "untyped_storage",
    "view",
    "view_as",
    "_is_zerotensor",
}


@dataclass(frozen=True, eq=False)
class Action:
    """Something that a stream or the host does.

    Attributes:
        name: of the function; a copy is "to host", "to device" or "on device".
        where: the name of the stream, or "host".
        after: the actions that have ended when it starts, without those before them.
    """

    name: str
    where: str
    after: frozenset[Action]

    def __repr__(self) -> str:
        return f"{self.name} ({self.where})"


class RecordedStream:
    """A queue of actions; each starts when the one before it has ended."""

    def __init__(self, cuda: RecordedCuda, device: torch.device, name: str) -> None:
        self.device = device
        self.name = name
        self._cuda = cuda
        self.last: frozenset[Action] = frozenset()

    def wait_event(self, event: RecordedEvent) -> None:
        self.last |= event.recorded

    def wait_stream(self, stream: RecordedStream) -> None:
        self.last |= stream.last

    def record_event(self, event: RecordedEvent | None = None) -> RecordedEvent:
        event = event or RecordedEvent(self._cuda)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._cuda.host |= self.last

    def query(self) -> bool:
        if self._cuda.is_done:
            self.synchronize()
        return self._cuda.is_done

    def __repr__(self) -> str:
        return f"{self.name} of {self.device}"


class RecordedEvent:
    """What a stream had been given when it was recorded."""

    def __init__(
        self,
        cuda: RecordedCuda,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self._cuda = cuda
        self.blocking = blocking
        self.recorded: frozenset[Action] = frozenset()
        self._awaited = False

    def record(self, stream: RecordedStream | None = None) -> None:
        self.recorded = (stream or self._cuda.current_stream()).last
        self._awaited = False

    def wait(self, stream: RecordedStream | None = None) -> None:
        (stream or self._cuda.current_stream()).wait_event(self)

    def query(self) -> bool:
        self._cuda.require_no_capture("Event.query")
        if self._cuda.is_done or self._awaited:
            self._cuda.host |= self.recorded
            return True
        return False

    def synchronize(self) -> None:
        self._cuda.require_no_capture("Event.synchronize")
        self._cuda.host |= self.recorded
        self._awaited = True


class RecordedCuda:
    """
    Attributes:
        actions: all of them, in the order in which they were issued.
        host: the last actions that the host knows to have ended.
        is_done: what queries answer, of events that nobody has waited for.
        capturing: whether a CUDA graph is being captured.
        kept: streams for which a tensor's memory was kept, by its address.
    """

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.host: frozenset[Action] = frozenset()
        self.is_done = True
        self.capturing = False
        self.kept: list[tuple[int, RecordedStream]] = []
        self._device = torch.device("cuda", 0)
        self._current: dict[torch.device, RecordedStream] = {}
        self._count = 0

    # What torch.cuda has.

    def Stream(  # noqa: N802
        self, device: Any = None, priority: int = 0
    ) -> RecordedStream:
        self._count += 1
        return RecordedStream(self, self._as_device(device), f"stream {self._count}")

    def Event(self, **options: bool) -> RecordedEvent:  # noqa: N802
        return RecordedEvent(self, **options)

    def current_stream(self, device: Any = None) -> RecordedStream:
        place = self._as_device(device)
        if place not in self._current:
            self._current[place] = RecordedStream(self, place, "default stream")
        return self._current[place]

    def current_device(self) -> int:
        return self._device.index or 0

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self._device = self._device, self._as_device(device)
        try:
            yield
        finally:
            self._device = before

    @contextmanager
    def stream(self, stream: RecordedStream) -> Iterator[None]:
        before = self.current_stream(stream.device)
        self._current[stream.device] = stream
        try:
            with self.device(stream.device):
                yield
        finally:
            self._current[stream.device] = before

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def synchronize(self, device: Any = None) -> None:
        self.current_stream(device).synchronize()

    # What tests have besides.

    def tensor(self, values: Tensor, device: Any = "cuda:0") -> Tensor:
        """A tensor of a device, with memory of `values`."""
        return values.as_subclass(_class_of(self, torch.device(device)))

    def launch(self, name: str, device: Any = None) -> Action:
        """Give the current stream of a device something to do."""
        stream = self.current_stream(device)
        action = Action(name, repr(stream), stream.last | self.host)
        stream.last = frozenset({action})
        self.actions.append(action)
        return action

    def on_host(self, name: str) -> Action:
        """Something that the host does now."""
        action = Action(name, "host", self.host)
        self.host = frozenset({action})
        self.actions.append(action)
        return action

    def named(self, name: str) -> list[Action]:
        """The actions of a name."""
        return [action for action in self.actions if action.name == name]

    def only(self, name: str) -> Action:
        """The one action of a name."""
        [action] = self.named(name)
        return action

    def precedes(self, first: Action, then: Action) -> bool:
        """Whether `then` cannot start before `first` has ended."""
        seen: set[Action] = set()
        ahead = set(then.after)
        while ahead:
            action = ahead.pop()
            if action is first:
                return True
            seen.add(action)
            ahead |= action.after - seen
        return False

    def is_kept(self, tensor: Tensor, stream_of: Action) -> bool:
        """Whether the memory of a tensor stays its own until a stream is done with an action."""
        return any(
            address == tensor.data_ptr() and repr(stream) == stream_of.where
            for address, stream in self.kept
        )

    def require_no_capture(self, call: str) -> None:
        if self.capturing:
            raise RuntimeError(f"{call} is not permitted while a stream is capturing")

    def _as_device(self, device: Any) -> torch.device:
        if device is None:
            return self._device
        return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


class RecordedTensor(Tensor):
    """A tensor in the CPU's memory that says it is on a device; see `RecordedCuda.tensor`."""

    recorder: RecordedCuda
    place: torch.device

    @property
    def device(self) -> torch.device:
        return self.place

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_cpu(self) -> bool:
        return False

    def record_stream(self, stream: RecordedStream) -> None:
        self.recorder.kept.append((self.data_ptr(), stream))

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        result = super().__torch_function__(function, types, arguments, named)
        name = getattr(function, "__name__", "")
        if name not in _FREE:
            cls.recorder.launch(_action_name(name, arguments), cls.place)
        return result


def _action_name(function: str, arguments: Sequence[Any]) -> str:
    if function not in ("copy_", "_foreach_copy_"):
        return function
    target, source = arguments[:2]
    if function == "_foreach_copy_":
        target, source = target[0], source[0]
    if not isinstance(target, RecordedTensor):
        return "to host"
    return "on device" if isinstance(source, RecordedTensor) else "to device"


def _class_of(cuda: RecordedCuda, device: torch.device) -> type[RecordedTensor]:
    return type("RecordedTensor", (RecordedTensor,), {"recorder": cuda, "place": device})
