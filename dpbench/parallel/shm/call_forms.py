"""The two forms in which torch's process groups take a collective.

The long one has lists of tensors and an object with options; torch.distributed calls it, often, so
that it must cost nothing here. The short one has a tensor and a root, an operator or a timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

c10d: Any = torch._C._distributed_c10d
FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def options(kind: Any, names: Sequence[str], given: Any, *more: Any, **named: Any) -> Any:
    """Options of a kind, from what stands in their place.

    Args:
        kind: one of torch's classes of options.
        names: of what the short form has in its place, in order.
        given, more, named: the arguments of the call; options of the kind, or the short form's.

    Raises:
        TypeError: for an argument that neither form has.
    """
    if type(given) is kind and not more and not named:
        return given
    values = {} if given is None and not more else dict(zip(names, (given, *more), strict=False))
    if len(more) >= len(names) or named.keys() - set(names) or values.keys() & named.keys():
        raise TypeError(
            f"got {1 + len(more)} arguments and {sorted(named)} after the tensors, expected "
            f"{kind.__name__} or {', '.join(names)}"
        )
    result = kind()
    for name, value in (values | named).items():
        if name == "timeout" and value is not None and not isinstance(value, timedelta):
            value = timedelta(seconds=value)
        if value is not None:
            setattr(result, FIELDS[name], value)
    return result


def listed(tensors: Any) -> list[Tensor]:
    """A list of tensors, for one tensor too."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def listed_lists(tensors: Any) -> list[list[Tensor]]:
    """A list of lists of tensors, for one list too."""
    if tensors and isinstance(tensors[0], Tensor):
        return [list(tensors)]
    return list(tensors)
