"""Which parameters take part in a step, and whether they are still the ones that were wrapped.

This is checked before each training forward. Users freeze parameters for a while (a GAN's
discriminator during the generator's step), convert the module, replace a layer, or call it with
other parameters (torch.func.functional_call), and hooks on the old parameters notice nothing of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import attrgetter, is_

import torch
from torch import Tensor, nn
from torch.nn.utils import stateless

from dpbench.parallel.ddp.children import Children

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
