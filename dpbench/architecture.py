"""The architecture protocol, and loading one by name.

An architecture is a module in `architectures/` (or any "package.module:factory") whose factory
returns an object with the members of `Architecture`. It imports torch only, never dpbench.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dpbench.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import torch

FACTORY = "Architecture"
"""The name that each module of `architectures/` gives to its factory."""


class Architecture(Protocol):
    """What is trained.

    One that can tell right predictions from wrong ones also has `count_correct`, see
    `CountsCorrect`; without it a training knows the loss only.
    """

    name: str
    item: str
    """What a sample is called, in the plural: images, samples, tokens."""
    default_dataset: str
    flops_per_item: float
    """Floating-point operations of forward and backward for one item (2 per multiply-add)."""

    def build_model(self) -> torch.nn.Module:
        """A new model, initialised from torch's current random state."""
        ...

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`n` inputs and targets that can be learnt."""
        ...

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss over the batch, 0-dimensional."""
        ...


@runtime_checkable
class CountsCorrect(Protocol):
    """What an architecture may have beside the members of `Architecture`."""

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many of the targets.numel() targets are predicted right; int64, 0-dimensional."""
        ...


def names() -> tuple[str, ...]:
    """The architectures that ship with dpbench; imports none of them."""
    modules = (module.name for module in pkgutil.iter_modules(_package_path()))
    return tuple(sorted(name for name in modules if not name.startswith("_")))


def check(name: str) -> None:
    """Raises UsageError unless `name` can be loaded; imports no shipped architecture."""
    if ":" not in name:
        if name not in names():
            raise UnknownName("architecture", name, names())
        return
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise UsageError(f"architecture {name!r}: expected package.module:factory, both named")
    if not _module_exists(module):
        raise UsageError(
            f"architecture {name!r}: no module {module!r} found; expected one of "
            f"{', '.join(names())}, or package.module:factory with the package on PYTHONPATH"
        )


def load(name: str) -> Architecture:
    """The architecture called `name`; raises UsageError naming what is wrong with it."""
    check(name)
    module_name, _, factory_name = name.partition(":")
    if not factory_name:
        module_name, factory_name = f"architectures.{name}", FACTORY
    architecture = _call(name, module_name, factory_name)
    missing = [member for member in _members() if not hasattr(architecture, member)]
    if missing:
        raise UsageError(
            f"architecture {name!r}: {factory_name}() gave a {type(architecture).__name__} "
            f"without {', '.join(missing)}; see dpbench.architecture.Architecture"
        )
    return architecture


def _call(name: str, module_name: str, factory_name: str) -> Architecture:
    """Imports and calls what may be anybody's code: its errors are errors of the name."""
    try:
        factory = getattr(importlib.import_module(module_name), factory_name, None)
        if not callable(factory):
            raise UsageError(f"architecture {name!r}: {module_name} has no {factory_name}()")
        return factory()  # type: ignore[no-any-return]
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"architecture {name!r}: loading it raised {type(error).__name__}: {error}"
        ) from error


def _members() -> list[str]:
    methods = [name for name in vars(Architecture) if not name.startswith("_")]
    return [*Architecture.__annotations__, *methods]


def _package_path() -> list[str]:
    spec = importlib.util.find_spec("architectures")
    return list(spec.submodule_search_locations or []) if spec else []


def _module_exists(name: str) -> bool:
    """Looks for the module; of a dotted name this imports the parents, which may fail."""
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False
