"""Loads a state dict into a wrapped module, with or without its prefix, all or nothing."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

PREFIX = "module."


def without_prefix(state_dict: Mapping[str, Any], own_keys: Iterable[str]) -> Mapping[str, Any]:
    """The state dict with the keys of the bare module.

    Args:
        state_dict: from the bare module, from DataParallel or from DistributedDataParallel.
        own_keys: the keys of the bare module, which may itself have a child named "module".
    """
    own = set(own_keys)
    if own.intersection(state_dict) or not all(key.startswith(PREFIX) for key in state_dict):
        return state_dict
    bare: OrderedDict[str, Any] = OrderedDict(state_dict)
    # Versions of the submodules, with which torch upgrades state dicts of earlier releases.
    vars(bare).update(copy.deepcopy(getattr(state_dict, "__dict__", {})))
    consume_prefix_in_state_dict_if_present(bare, PREFIX)
    return bare


def load_all_or_nothing(
    module: nn.Module, state_dict: Mapping[str, Any], *, strict: bool, assign: bool
) -> Any:
    """Call module.load_state_dict; if it fails, restore the module.

    Args:
        module: the bare module.
        state_dict: with or without the prefix "module.".
        strict, assign: as in torch.nn.Module.load_state_dict.

    Returns:
        The missing and unexpected keys, as torch does.

    Raises:
        RuntimeError: lists all missing and unexpected keys and all wrong shapes.
    """
    bare = without_prefix(state_dict, module.state_dict().keys())
    before = _snapshot(module, with_values=not assign)
    try:
        return module.load_state_dict(bare, strict=strict, assign=assign)
    except BaseException:
        with torch.no_grad():
            for child, name, tensor, values in before:
                setattr(child, name, tensor)
                if values is not None:
                    tensor.copy_(values)
        raise


_Saved = tuple[nn.Module, str, Tensor, Tensor | None]


def _snapshot(module: nn.Module, *, with_values: bool) -> list[_Saved]:
    """The holder of every parameter and buffer, with a copy of its values if wanted.

    The copies are in host memory: a model that takes more than half of a GPU's memory would not fit
    there twice.
    """
    return [
        (child, name, tensor, tensor.detach().to("cpu", copy=True) if with_values else None)
        for child in module.modules()
        for found in (child.named_parameters, child.named_buffers)
        for name, tensor in found(recurse=False)
    ]
