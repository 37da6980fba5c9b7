"""The two forms in which torch's process groups accept a collective.

The long form has lists of tensors and an options object; torch.distributed calls it, and often, so
it must cost nothing here. The short form has a tensor and a root, an operator or a timeout.
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
    """An options object of this kind, from the arguments of either form.

    Args:
        kind: one of torch's options classes.
        names: attributes that the short form gives instead, in order.
        given, more, named: the arguments of the call: options of the kind, or the short form's.

    Raises:
        TypeError: neither form has such an argument.
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
    """The tensors as a list, also for a single tensor."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def listed_lists(tensors: Any) -> list[list[Tensor]]:
    """The lists as a list of lists, also for a single list."""
    if tensors and isinstance(tensors[0], Tensor):
        return [list(tensors)]
    return list(tensors)
