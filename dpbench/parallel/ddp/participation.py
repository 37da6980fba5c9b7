"""The parameters that take part in a step, and those without a gradient on some ranks."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from operator import attrgetter, is_

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import stateless

from dpbench.parallel.cuda import HostReport
from dpbench.parallel.ddp.comm_hooks import Exchange
from dpbench.parallel.ddp.modules import Children

NOTHING: frozenset[int] = frozenset()
_REQUIRES_GRAD = attrgetter("requires_grad")


class Participation:
    """Watches the parameters of a wrapped module.

    Each step makes only fast comparisons: which objects the module holds, their flags, and their
    memory addresses.

    Attributes:
        names: names of the trained parameters, those that required a gradient when wrapped.
        parameters: the same parameters; their indices are positions in this list.
    """

    def __init__(
        self, module: nn.Module, named_parameters: Sequence[tuple[str, nn.Parameter]]
    ) -> None:
        """
        Args:
            module: holds the parameters.
            named_parameters: all that take part, each once.
        """
        self._module = module
        self._watched = list(named_parameters)
        self._everyone = [parameter for _, parameter in self._watched]
        trained = [(name, p) for name, p in self._watched if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.parameters = [parameter for _, parameter in trained]
        self._index_of = {id(p): index for index, p in enumerate(self.parameters)}
        self._kinds = [(p.dtype, p.device) for p in self.parameters]
        self._children = Children(module)
        self._find()
        self._flags = [parameter.requires_grad for parameter in self._everyone]
        self._frozen = NOTHING
        # Aliases keep the memory alive, so that no other tensor can get its address.
        self._aliases = [parameter.detach() for parameter in self.parameters]
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]

    def begin(self) -> tuple[frozenset[int], list[int]]:
        """Compare the module with what was wrapped, before a forward.

        Returns:
            The trained parameters that get no gradient from the forward, and those whose memory has
            changed since the last one. Those can have a new gradient-accumulation node, which has
            no hook yet.

        Raises:
            RuntimeError: a parameter was replaced, has another dtype or device, or requires a
                gradient that nothing would average.
        """
        swapped = NOTHING if self._are_in_place() else self._swapped()
        flags = list(map(_REQUIRES_GRAD, self._everyone))
        if flags != self._flags:
            self._note_flags(flags)
        addresses = list(map(Tensor.data_ptr, self.parameters))
        renewed = self._note_memory(addresses) if addresses != self._addresses else []
        return (self._frozen | swapped if swapped else self._frozen), renewed

    def _find(self) -> None:
        """Find out where the module holds the parameters."""
        watched = set(map(id, self._everyone))
        found = [
            (child._parameters, key, parameter)
            for child in self._children.look()
            # A ScriptModule has no such dictionary, and its parameters cannot be replaced.
            if not isinstance(child, torch.jit.ScriptModule)
            for key, parameter in child._parameters.items()
            if id(parameter) in watched
        ]
        self._places = [(held, key) for held, key, _ in found]
        self._placed = [parameter for *_, parameter in found]

    def _are_in_place(self) -> bool:
        if self._children.have_changed():
            return False
        held = [held.get(key) for held, key in self._places]
        return all(map(is_, held, self._placed))

    def _swapped(self) -> frozenset[int]:
        """The trained parameters that functional_call has replaced by tensors through which no
        gradient reaches them."""
        held = set(map(id, self._module.parameters()))
        away = [(name, p) for name, p in self._watched if id(p) not in held]
        if not away:  # they have only moved
            self._find()
            return NOTHING
        if not _within_functional_call():
            raise RuntimeError(
                f"parameter {away[0][0]!r} was replaced after it was wrapped, so that nothing "
                "averages its gradient; wrap the module again"
            )
        led_to = {
            id(parameter)
            for (held, key), parameter in zip(self._places, self._placed, strict=True)
            if _may_be_computed(held.get(key))
        }
        indices = (self._index_of.get(id(p)) for _, p in away if id(p) not in led_to)
        return frozenset(index for index in indices if index is not None)

    def _note_flags(self, flags: list[bool]) -> None:
        for (name, parameter), trains in zip(self._watched, flags, strict=True):
            if trains and id(parameter) not in self._index_of:
                raise RuntimeError(
                    f"parameter {name!r} did not require a gradient when it was wrapped and now "
                    "does, so that nothing averages its gradient; wrap the module again"
                )
        self._flags = flags
        self._frozen = frozenset(
            index for index, parameter in enumerate(self.parameters) if not parameter.requires_grad
        )

    def _note_memory(self, addresses: list[int]) -> list[int]:
        for index, (parameter, kind) in enumerate(zip(self.parameters, self._kinds, strict=True)):
            if (parameter.dtype, parameter.device) != kind:
                raise RuntimeError(
                    f"parameter {self.names[index]!r} had (dtype, device) = {kind} when it was "
                    f"wrapped and now has {(parameter.dtype, parameter.device)}; wrap the module "
                    "again"
                )
        # A frozen parameter has no node, so it stays "changed" until it trains. The others are
        # all checked: those without elements have no address that could change.
        renewed = [index for index in range(len(addresses)) if index not in self._frozen]
        for index in renewed:
            self._aliases[index] = self.parameters[index].detach()
            self._addresses[index] = addresses[index]
        return renewed


def _may_be_computed(stand_in: Tensor | None) -> bool:
    """Whether a tensor in place of a parameter may be computed from it, for example by scaling.

    Tensors that torch.func differentiates do not count: torch.func keeps those gradients to itself.
    """
    if stand_in is None or torch._C._functorch.is_functorch_wrapped_tensor(stand_in):
        return False
    return stand_in.grad_fn is not None


def _within_functional_call() -> bool:
    """Whether torch.func.functional_call is among the callers; torch has no API that tells."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is stateless._functional_call.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_MOST_RANKS = {
    torch.float64: 2**52,
    torch.float32: 2**23,
    torch.float16: 1024,
    torch.bfloat16: 128,
}
"""The largest number of ranks for which a dtype's sum of ones, or their mean, distinguishes "all"
from "all but one"."""


class MissingReport:
    """One flag per parameter, summed over the ranks: zero where all have a gradient.

    One more flag says that a rank has given up waiting for its gradients. Where possible the report
    is appended to the last bucket, so that it costs no collective; otherwise it has one of its own.
    """

    def __init__(
        self, count: int, exchange: Exchange, device: torch.device, rider: Tensor | None
    ) -> None:
        """
        Args:
            count: number of parameters.
            exchange: sums the flags over the ranks.
            device: where the flags are.
            rider: the end of the last bucket; None if the report travels alone.
        """
        self._exchange = exchange
        self._alone = rider is None
        size = self.length(count)
        self._count = count
        self._flags = exchange.zeros(size, torch.float32, device) if rider is None else rider
        self._work: dist.Work | None = None
        self._averaged = False
        self._placed: set[int] = set()
        self._places: Tensor | None = None
        self._sent = HostReport(self._flags) if device.type == "cuda" else None

    @property
    def _missing(self) -> Tensor:
        """One flag per parameter; not kept, as the bucket counts the references to its memory."""
        return self._flags[: self._count]

    @property
    def _gave_up(self) -> Tensor:
        return self._flags[self._count :]

    def ride_on(self, rider: Tensor) -> None:
        """Move the flags to the last bucket's new memory."""
        if not self._alone:
            self._flags = rider

    @staticmethod
    def length(count: int) -> int:
        """Number of elements in a report on `count` parameters."""
        return count + 1

    @staticmethod
    def can_ride(dtype: torch.dtype, ranks: int) -> bool:
        """Whether flags of so many ranks can be summed exactly in a bucket of this dtype."""
        return ranks <= _MOST_RANKS.get(dtype, 0)

    def flag(self, indices: Collection[int]) -> None:
        """Flag these parameters as without a gradient on this rank."""
        if not indices:
            return
        if self._places is None or self._placed != set(indices):
            # Kept, as they are often the same in each step; and CUDA graphs capture no copy from
            # host memory.
            self._placed = set(indices)
            self._places = torch.tensor(sorted(indices), device=self._flags.device)
        self._missing.index_fill_(0, self._places, 1)

    def give_up(self) -> None:
        """Tell all ranks that this one no longer expects its gradients; an error on all of them."""
        self._gave_up.fill_(1)

    def send(self, *, average: bool) -> None:
        """Send the report, after the last flag and before the last bucket is waited for."""
        self._averaged = average and not self._alone
        if self._alone:
            self._work = self._exchange.start(self._flags, average=False)

    def wait(self) -> None:
        """Wait until the flags are those of all ranks; not needed if they travel with a bucket."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def where_given_up(self) -> list[int] | None:
        """The parameters that are missing on some rank, if one has given up; else None.

        On CUDA the answer would need a wait for the device, so `late_where_given_up` gives it.
        """
        if self._sent is None:
            return self._missing_of(self._flags)
        self._sent.send(self._flags)
        return None

    def late_where_given_up(self) -> list[int] | None:
        """`where_given_up` for the last backward, asked before the next forward.

        On CUDA the host waits here until the gradients have been reduced, after it has queued the
        optimizer's step. Without that wait it would be one step ahead when a rank gives up, in a
        collective that the other rank has left.
        """
        flags = None if self._sent is None else self._sent.take()
        return None if flags is None else self._missing_of(flags)

    def _missing_of(self, flags: Tensor) -> list[int] | None:
        if not flags[self._count :].any():
            return None
        found: list[int] = flags[: self._count].nonzero().flatten().tolist()
        return found

    def on_every_rank(self) -> set[int]:
        """The parameters without a gradient on every rank."""
        ranks = self._exchange.size
        everyone = 1.0 if self._averaged else float(ranks)
        found = self._missing > everyone * (1 - 0.5 / ranks)
        return set(found.nonzero().flatten().tolist())

    def reset(self) -> None:
        """Clear all flags for the next backward."""
        self._flags.zero_()
