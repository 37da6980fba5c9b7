"""Loads an architecture by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpbench.architecture import sources
from dpbench.architecture.naming import INPUT_SHAPE, Name, input_shape, parse_name
from dpbench.architecture.options import Option, convert, options_of
from dpbench.architecture.protocol import Architecture, missing_members
from dpbench.architecture.user_errors import user_errors_in
from dpbench.errors import UsageError

__all__ = ["Option", "load", "options"]


def load(text: str) -> Architecture:
    """The architecture that `text` names, see `dpbench.architecture.naming`.

    A user's factory is called here and again for every model that is built. torch's random state
    stays as it was.

    Raises:
        UsageError: naming what is wrong with the name, an option, the factory or its result.
    """
    sources.check(text)
    name = parse_name(text)
    make = _with_options(name, sources.factory_of(name))
    if name.source in ("shipped", "library"):
        with user_errors_in(name.title, "loading it"):
            try:
                architecture = _whole(name, make())
            except ValueError as error:  # an option that no model can have
                raise UsageError(f"{name.title}: {error}") from None
        if name.source == "library":
            architecture.name = name.text
        return architecture
    import torch

    with torch.random.fork_rng(devices=[]), user_errors_in(name.title, f"{_called(name)}()"):
        made = make()
    return _from_result(name, make, made)


def options(text: str) -> tuple[Option, ...]:
    """The options of the architecture; imports its module. Raises UsageError if it cannot be
    loaded."""
    sources.check(text)
    return options_of(sources.factory_of(parse_name(text)))


def _with_options(name: Name, factory: Callable[..., Any]) -> Callable[[], Any]:
    """The factory with its options, except for dpbench's own option input_shape."""
    if INPUT_SHAPE in name.options and INPUT_SHAPE in (one.name for one in options_of(factory)):
        raise UsageError(
            f"{name.title}: {INPUT_SHAPE} is dpbench's own option; the factory's parameter needs "
            "another name"
        )
    given = {key: value for key, value in name.options.items() if key != INPUT_SHAPE}
    keywords = convert(given, factory, name.title)
    return lambda: factory(**keywords)


def _from_result(name: Name, make: Callable[[], Any], made: Any) -> Architecture:
    """The architecture for the result of a user's factory: parts, a model, or an architecture."""
    from torch import nn

    from dpbench.architecture import user_models

    shape = input_shape(name)
    if isinstance(made, nn.Module):
        return user_models.from_model(name.text, make, made, shape)
    if shape is not None:
        raise UsageError(
            f"{name.title}: the factory defines the model's inputs itself; leave {INPUT_SHAPE} out"
        )
    if type(made) in (tuple, list):
        return user_models.from_parts(name.text, make, tuple(made))
    if not (hasattr(made, "build_model") or hasattr(made, "synthetic_batch")):
        raise UsageError(
            f"{name.title}: {_called(name)}() returned {user_models.described(made)}"
            f"{user_models.EXPECTED}"
        )
    return _whole(name, made)


def _whole(name: Name, architecture: Any) -> Architecture:
    if missing := missing_members(architecture):
        raise UsageError(
            f"{name.title}: {_called(name)}() returned a {type(architecture).__name__} without "
            f"{', '.join(missing)}; see dpbench.architecture.Architecture"
        )
    return architecture  # type: ignore[no-any-return]


def _called(name: Name) -> str:
    return name.factory or sources.SHIPPED_FACTORY
