"""A random number stream for each replica, although all threads share one CPU generator.

Replicas that ran dropout at the same time would draw from that generator in the order in which the
threads run, which differs between runs. Here a replica that draws gets a generator of its own,
seeded with one number from the default generator per forward. So the masks of the replicas differ,
and torch.manual_seed in the caller repeats them.

torch cannot give a thread another default generator. A dispatch mode, which belongs to a thread,
hands the replica's generator to every operator that draws. The mode costs some 3 µs per operator,
so a module that drew nothing in its first forward runs without it as long as its submodules stay in
the same training or evaluation modes.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

# Private by name, but the documented base class for users' dispatch modes.
from torch.utils._python_dispatch import TorchDispatchMode

_DEFAULT = threading.Lock()
"""Held while drawing from the default generator for a replica, and while setting its state."""


class Randomness:
    """Decides for each forward of one module whether its replicas need streams."""

    def __init__(self) -> None:
        self._silent: set[tuple[bool, ...]] = set()

    @contextmanager
    def watch(self, module: nn.Module) -> Iterator[ReplicaStreams | None]:
        """A context for one forward: gives its streams, or None if the module draws nothing.

        Warns:
            UserWarning: a module that drew nothing before has drawn; the next forward has streams.
        """
        modes = tuple(child.training for child in module.modules())
        if modes not in self._silent:
            streams = ReplicaStreams()
            yield streams
            if not streams.drawn:
                self._silent.add(modes)
            return
        before = torch.default_generator.get_state()
        yield None
        if not torch.equal(before, torch.default_generator.get_state()):
            self._silent.clear()
            warnings.warn(
                "the replicas began to draw random numbers without a change of train() or eval(); "
                "those of this forward depend on the order of the threads, those of the next "
                "ones are reproducible",
                stacklevel=5,
            )


class ReplicaStreams:
    """The generators of the replicas' random numbers, one each.

    Attributes:
        drawn: whether any replica has drawn.
        recomputed: whether a replica drew in a region of activation checkpointing.
    """

    def __init__(self, generators: Sequence[torch.Generator] | None = None) -> None:
        """Use these generators; None creates new ones when needed, seeded with consecutive numbers
        from one draw."""
        self.drawn = False
        self.recomputed = False
        self._generators = generators
        self._seed: int | None = None

    def entered(self, replica: int) -> AbstractContextManager[Any]:
        """The context for the forward of a replica, to enter in its thread."""
        return _OwnStream(self, replica)

    def entered_backward(self) -> AbstractContextManager[Any]:
        """The context for the backward of a replica, to enter in its thread."""
        return _NoRepetition() if self.recomputed else nullcontext()  # type: ignore[no-untyped-call]

    def generator(self, replica: int) -> torch.Generator:
        """The generator of a replica that is about to draw."""
        self.drawn = True
        if self._generators is not None:
            return self._generators[replica]
        with _DEFAULT:
            if self._seed is None:
                self._seed = int(torch.empty((), dtype=torch.int64).random_(2**62))
        return torch.Generator().manual_seed(self._seed + replica)


class _OwnStream(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, streams: ReplicaStreams, replica: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._streams = streams
        self._replica = replica
        self._generator: torch.Generator | None = None
        self._outside = _checkpointing()

    def __torch_dispatch__(
        self, func: OpOverload[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _draws(func) or _has_generator(args, kwargs):
            return func(*args, **kwargs)
        if self._generator is None:
            self._generator = self._streams.generator(self._replica)
        if _checkpointing() != self._outside:
            self._streams.recomputed = True
        return _draw(func, args, kwargs, self._generator)


class _NoRepetition(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses to draw: a recomputation could not repeat what the forward has drawn."""

    def __torch_dispatch__(
        self, func: OpOverload[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _draws(func) and not _has_generator(args, kwargs):
            raise RuntimeError(
                f"{func} draws random numbers in the backward: activation checkpointing "
                "cannot repeat the random numbers of a CPU replica. Keep dropout out of the "
                "checkpointed part, or use DistributedDataParallel"
            )
        return func(*args, **kwargs)


def _draw(
    func: OpOverload[..., Any], args: Any, kwargs: dict[str, Any], generator: torch.Generator
) -> Any:
    seeded = _with_generator(func)
    if seeded is not None:
        return seeded(*args, **kwargs, generator=generator)
    # Other operators, e.g. randn_like in earlier releases, only use the default generator.
    with _DEFAULT:
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(generator.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)


@functools.cache
def _draws(func: OpOverload[..., Any]) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


@functools.cache
def _with_generator(func: OpOverload[..., Any]) -> Callable[..., Any] | None:
    """The overload of the same operator that takes a generator, e.g. rand.generator."""
    names = [argument.name for argument in func._schema.arguments]
    if "generator" in names:
        return func
    _, _, overload = func.name().partition(".")  # type: ignore[no-untyped-call]
    return getattr(func.overloadpacket, f"{overload}_generator".removeprefix("_"), None)


def _has_generator(args: Any, kwargs: dict[str, Any]) -> bool:
    return kwargs.get("generator") is not None or any(
        isinstance(argument, torch.Generator) for argument in args
    )


def _checkpointing() -> tuple[Any, ...]:
    """The thread's state that the two kinds of activation checkpointing change during their
    forward."""
    return torch.is_grad_enabled(), saved_tensors_hooks()


def saved_tensors_hooks() -> tuple[Any, Any] | None:
    """The innermost pair of torch.autograd.graph.saved_tensors_hooks of this thread.

    torch offers no public way to ask.
    """
    pair: tuple[Any, Any] | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return pair
