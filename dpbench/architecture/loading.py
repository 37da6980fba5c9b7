"""Loads an architecture by its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dpbench.architecture import sources
from dpbench.architecture.naming import Name, parse_name
from dpbench.architecture.options import Option, convert, options_of
from dpbench.architecture.protocol import Architecture, missing_members
from dpbench.architecture.user_errors import user_errors_in
from dpbench.errors import UsageError


def load(text: str) -> Architecture:
    """The architecture that `text` names, see `dpbench.architecture.naming`.

    A user's factory is called here and again for every model that is built. torch's random state
    stays as it was.

    Raises:
        UsageError: naming what is wrong with the name, an option, the factory or its result.
    """
    sources.check(text)
    name = parse_name(text)
    factory = sources.factory_of(name)
    keywords = convert(name.options, factory, name.title)

    make = partial(factory, **keywords)
    if not name.is_theirs:
        with user_errors_in(name.title, "loading it"):
            try:
                architecture: Architecture = make()
            except ValueError as error:  # an option that no model can have
                raise UsageError(f"{name.title}: {error}") from None
        return architecture
    import torch

    if isinstance(factory, torch.nn.Module):
        raise UsageError(
            f"{name.title}: {name.factory} is a model; expected a function that returns a new one"
        )
    with torch.random.fork_rng(devices=[]), user_errors_in(name.title, f"{name.factory}()", make):
        made = make()
    return _from_result(name, make, made)


def options(text: str) -> tuple[Option, ...]:
    """The options of the architecture; imports its module. Raises UsageError if it cannot be
    loaded."""
    sources.check(text)
    return options_of(sources.factory_of(parse_name(text)))


def _from_result(name: Name, make: Callable[[], Any], made: Any) -> Architecture:
    """The architecture for the result of a user's factory: parts or an architecture."""
    from torch import nn

    from dpbench.architecture import user_models

    returned = f"{name.title}: {name.factory}() returned {user_models.described(made)}"
    if type(made) in (tuple, list) and len(made) == 3:
        model, batch, loss = made
        if isinstance(model, nn.Module) and callable(batch) and callable(loss):
            return user_models.GivenParts(name.text, make, batch, loss)
    if not (hasattr(made, "build_model") or hasattr(made, "synthetic_batch")):
        raise UsageError(f"{returned}{user_models.EXPECTED}")
    if missing := missing_members(made):
        raise UsageError(
            f"{returned} without {', '.join(missing)}; see dpbench.architecture.Architecture"
        )
    architecture: Architecture = made
    return architecture
