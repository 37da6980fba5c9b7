"""A random number stream for each replica, although all threads share one CPU generator.

Replicas that ran dropout at the same time would draw from that generator in the order in which the
threads run, which differs between runs. Here each replica in training mode draws from a generator
of its own, seeded with one number from the default generator per forward. So the masks of the
replicas differ, and torch.manual_seed in the caller repeats them.

torch cannot give a thread another default generator. A dispatch mode, which belongs to a thread,
hands the replica's generator to every operator that draws; it costs some 3 µs per operator. The few
operators that take no generator, such as native_dropout and randint_like, and randn_like in earlier
releases, draw from the default one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import disable_saved_tensors_hooks

from dpbench.parallel.torch_private import TorchDispatchMode


def draw_generators(count: int) -> list[torch.Generator]:
    """New generators, seeded with consecutive numbers from one draw of the default generator."""
    seed = int(torch.empty((), dtype=torch.int64).random_(2**62))
    return [torch.Generator().manual_seed(seed + replica) for replica in range(count)]


class OwnStream(TorchDispatchMode):  # type: ignore[misc]
    """A context for the forward of a replica, to enter in its thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        if torch.Tag.nondeterministic_seeded not in func.tags or any(
            isinstance(value, torch.Generator) for value in given
        ):
            return func(*args, **kwargs)
        # Raises this message if such hooks are active, as a checkpoint's are.
        with disable_saved_tensors_hooks(
            f"{func} draws random numbers while saved-tensors hooks are active: activation "
            "checkpointing cannot repeat the random numbers of a CPU replica. Keep dropout out "
            "of the checkpointed part, or use DistributedDataParallel"
        ):
            return _draw(func, args, kwargs, self._generator)


def _draw(func: Any, args: Any, kwargs: dict[str, Any], generator: torch.Generator) -> Any:
    _, _, overload = func.name().partition(".")
    with_generator = f"{overload}_generator".removeprefix("_")  # such as rand.generator
    forms: list[Any] = [func]
    if with_generator in func.overloadpacket.overloads():
        forms.append(getattr(func.overloadpacket, with_generator))
    for form in forms:
        try:
            return form(*args, **kwargs, generator=generator)
        except (TypeError, RuntimeError):
            continue  # it takes no generator
    return func(*args, **kwargs)
