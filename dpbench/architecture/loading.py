"""From a name to its architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpbench.architecture import sources
from dpbench.architecture.naming import INPUT_SHAPE, Name, input_shape, parse
from dpbench.architecture.options import Option, convert, options_of
from dpbench.architecture.protocol import Architecture, missing_members
from dpbench.architecture.user_errors import blamed
from dpbench.errors import UsageError


def load(text: str) -> Architecture:
    """The architecture that `text` names, see `dpbench.architecture.naming`.

    A factory of somebody's is called, once here and again for every model that is built; torch's
    random state is left as it was.

    Raises:
        UsageError: naming what is wrong with the name, with an option, with what the factory
            raised, or with what it returned.
    """
    sources.check(text)
    name = parse(text)
    factory = sources.factory_of(name)
    make = _make(name, factory)
    if name.source in ("shipped", "library"):
        with blamed(name.title, "loading it"):
            architecture = _whole(name, _build(name, make))
        if name.source == "library":
            architecture.name = name.text  # with the options, as errors should say it
        return architecture
    import torch

    with torch.random.fork_rng(devices=[]), blamed(name.title, f"{_called(name)}()"):
        made = make()
    return _understood(name, make, made)


def options(text: str) -> tuple[Option, ...]:
    """The options that the architecture takes; imports what the name is of.

    Raises UsageError for a name that cannot be loaded.
    """
    sources.check(text)
    return options_of(sources.factory_of(parse(text)))


def _make(name: Name, factory: Callable[..., Any]) -> Callable[[], Any]:
    """The factory with its options; input_shape goes to it only if it has such a parameter."""
    shape = input_shape(name)
    given = {key: value for key, value in name.options.items() if key != INPUT_SHAPE}
    takes_shape = any(option.name == INPUT_SHAPE for option in options_of(factory))
    if shape is not None and takes_shape:
        raise UsageError(
            f"{name.title}: {INPUT_SHAPE} is dpbench's own option; the factory's parameter needs "
            "another name"
        )
    keywords = convert(given, factory, name.title)
    return lambda: factory(**keywords)


def _build(name: Name, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:  # of a value that no model can have
        raise UsageError(f"{name.title}: {error}") from None


def _understood(name: Name, make: Callable[[], Any], made: Any) -> Architecture:
    """The architecture for a factory's result: the parts, a model, or an architecture."""
    from torch import nn

    from dpbench.architecture import user_models

    shape = input_shape(name)
    if isinstance(made, nn.Module):
        return user_models.from_model(name.text, make, made, shape)
    if shape is not None:
        raise UsageError(
            f"{name.title}: the factory says itself what the model takes, so {INPUT_SHAPE} has no "
            "meaning; leave it out"
        )
    if type(made) in (tuple, list):
        return user_models.from_parts(name.text, make, tuple(made))
    if missing_members(made) and not _is_half_an_architecture(made):
        raise UsageError(
            f"{name.title}: {_called(name)}() returned {user_models.described(made)}"
            f"{user_models.EXPECTED}"
        )
    return _whole(name, made)


def _whole(name: Name, architecture: Any) -> Architecture:
    missing = missing_members(architecture)
    if missing:
        raise UsageError(
            f"{name.title}: {_called(name)}() gave a {type(architecture).__name__} without "
            f"{', '.join(missing)}; see dpbench.architecture.Architecture"
        )
    return architecture  # type: ignore[no-any-return]


def _is_half_an_architecture(made: Any) -> bool:
    return hasattr(made, "build_model") or hasattr(made, "synthetic_batch")


def _called(name: Name) -> str:
    return name.factory or sources.SHIPPED_FACTORY
