"""A random number stream for each replica, although all threads share one CPU generator.

Replicas that ran dropout at the same time would draw from that generator in the order in which the
threads run, which differs between runs. Here each replica of a module that draws has a generator of
its own, seeded with one number from the default generator per forward. So the masks of the replicas
differ, and torch.manual_seed in the caller repeats them.

torch cannot give a thread another default generator. A dispatch mode, which belongs to a thread,
hands the replica's generator to every operator that draws; it costs some 3 µs per operator, so only
modules that draw have it. The few operators that take no generator, such as native_dropout and
randint_like, and randn_like in earlier releases, draw from the default one. Compiled code draws its
seeds from the replica's. torch refuses higher-order operators, such as torch.cond, in the mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import disable_saved_tensors_hooks

from dpbench.parallel.torch_private import TorchDispatchMode

_DRAWS = torch.Tag.nondeterministic_seeded


@dataclass(slots=True)
class RandomUse:
    """The random numbers of a module on the CPU, in training or in evaluation mode."""

    draws: bool | None
    """Whether it draws any; None until the first forward has shown it. The replicas run one after
    another in that forward, since torch.compile may compile then, once for all."""

    @contextmanager
    def streams(self, replicas: int) -> Iterator[Sequence[AbstractContextManager[Any]]]:
        """A context for each replica, to enter in its thread; enter this one around the forward.

        A forward that draws nothing leaves the default generator as it was.
        """
        if self.draws is False:
            yield [nullcontext()] * replicas
            return
        before = torch.get_rng_state()
        seed = int(torch.empty((), dtype=torch.int64).random_(2**62))
        seeded = torch.get_rng_state()
        streams = [OwnStream(torch.Generator().manual_seed(seed + n)) for n in range(replicas)]
        yield streams
        moved = not torch.equal(torch.get_rng_state(), seeded)
        self.draws = moved or any(stream.drew for stream in streams)
        if not self.draws:
            torch.set_rng_state(before)


class OwnStream(TorchDispatchMode):  # type: ignore[misc]
    """A context for the forward of a replica, to enter in its thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.drew = False
        """Whether an operator has drawn random numbers."""
        self._generator = generator

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile without the mode, and run with it what it compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _DRAWS not in func.tags or any(
            isinstance(value, torch.Generator) for value in (*args, *kwargs.values())
        ):
            return func(*args, **kwargs)
        self.drew = True
        # Raises this message if such hooks are active, as a checkpoint's are.
        with disable_saved_tensors_hooks(
            f"{func} draws random numbers while saved-tensors hooks are active: activation "
            "checkpointing cannot repeat the random numbers of a CPU replica. Keep dropout out "
            "of the checkpointed part, or use DistributedDataParallel"
        ):
            try:
                # The overload of the operator that takes a generator.
                return func.overloadpacket(*args, **kwargs, generator=self._generator)
            except (TypeError, RuntimeError):
                return func(*args, **kwargs)  # there is none
