"""Architectures from the result of a user's factory: (model, batch, loss), or only a model."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpbench.architecture.protocol import GeneratedArchitecture
from dpbench.architecture.seeding import seeded
from dpbench.architecture.user_errors import place_of, user_errors_in
from dpbench.errors import UsageError


class GivenParts(GeneratedArchitecture):
    """An architecture of a user's model, batch and loss."""

    item = "samples"

    def __init__(
        self,
        name: str,
        factory: Callable[[], Any],
        batch: Callable[..., tuple[Any, Any]],
        loss: Callable[[Any, Any], torch.Tensor],
        notes: tuple[str, ...] = (),
    ) -> None:
        """`factory` returns the model, or a tuple that begins with it; `batch(n, generator)` makes
        n inputs and their targets."""
        self.name = name
        self.notes = notes
        self.factory = factory
        self.batch = batch
        self.loss = loss
        self._last_built: weakref.ref[nn.Module] | None = None

    def build_model(self) -> nn.Module:
        """A model from another call of the factory, initialized from torch's current random state.

        Raises UsageError if it is the one built before, which has been trained already.
        """
        made = self.factory()
        model: nn.Module = made if isinstance(made, nn.Module) else made[0]
        if self._last_built is not None and self._last_built() is model:
            raise UsageError(
                f"architecture {self.name!r}: the factory returned the same model again; expected "
                "a new one at every call: build it inside the function"
            )
        self._last_built = weakref.ref(model)
        return model

    def synthetic_batch(self, n: int, generator: torch.Generator) -> tuple[Any, Any]:
        """The result of batch(n, generator), the same in every process even if it draws global
        random numbers."""
        with seeded(generator.initial_seed()):
            if not takes(self.batch, n, generator):
                raise UsageError(
                    f"architecture {self.name!r}: expected batch(samples, generator), which takes "
                    f"two arguments{place_of(self.batch)}"
                )
            made = self.batch(n, generator)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise UsageError(
                f"architecture {self.name!r}: batch({n}) returned {described(made)}; expected "
                f"(inputs, targets){place_of(self.batch)}"
            )
        inputs, targets = made
        return inputs, targets


def from_model(
    name: str, make: Callable[[], nn.Module], model: nn.Module, shape: tuple[int, ...] | None
) -> GivenParts:
    """Architecture from a model alone: random inputs, and a mean-squared error to random targets.

    Raises UsageError without the shape of one input, for a model that does not take it, and for
    outputs that are no tensor (n, …).
    """
    if shape is None:
        raise UsageError(
            f"architecture {name!r}: the factory returned only a model; give the shape of an input "
            "as --input-shape 3,32,32 or the option input_shape=3x32x32, or return (model, batch, "
            "loss)"
        )
    title = f"architecture {name!r}"
    doing = f"the model with random inputs {(2, *shape)}"
    with user_errors_in(title, doing, make), torch.no_grad():
        outputs = model.eval()(torch.zeros(2, *shape))
    if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != (2,):
        raise UsageError(
            f"{title}: the model of 2 inputs returned {described(outputs)}; expected a tensor "
            "(2, …), or return (model, batch, loss) from the factory"
        )
    target_shape = outputs.shape[1:]

    def batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(n, *shape, generator=generator)
        return inputs, torch.randn(n, *target_shape, generator=generator)

    note = (
        f"{name} has no data: it trains on random inputs {shape} and random targets "
        f"{tuple(target_shape)}, so its loss means nothing"
    )
    return GivenParts(name, make, batch, nn.functional.mse_loss, (note,))


def takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the function accepts so many arguments; also if its signature is not known."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        pass
    return True


def described(value: Any) -> str:
    """A short description of a value for messages."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return f"a {type(value).__name__} of ({', '.join(type(part).__name__ for part in value)})"
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


EXPECTED = (
    "; expected (model, batch, loss) as in the file that dpbench init writes, or a model, or an "
    "object like dpbench.architecture.Architecture"
)
