"""Loads a state dict into a wrapped module, with or without its prefix, all or nothing."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

PREFIX = "module."


def load_all_or_nothing(
    module: nn.Module, state_dict: Mapping[str, Any], *, strict: bool, assign: bool
) -> Any:
    """Call module.load_state_dict; if it fails, restore the module.

    Args:
        module: the bare module, which may itself have a child named "module".
        state_dict: from the bare module, from DataParallel or from DistributedDataParallel.
        strict, assign: as in torch.nn.Module.load_state_dict.

    Returns:
        The missing and unexpected keys, as torch does.

    Raises:
        RuntimeError: lists all missing and unexpected keys and all wrong shapes.
    """
    is_bare = not module.state_dict().keys().isdisjoint(state_dict)
    if not is_bare and all(key.startswith(PREFIX) for key in state_dict):
        state_dict = _without_prefix(state_dict)
    # The values in host memory: a model that takes more than half of a GPU's memory would not fit
    # there twice.
    before = [
        (child, name, tensor, None if assign else tensor.detach().to("cpu", copy=True))
        for child in module.modules()
        for found in (child.named_parameters, child.named_buffers)
        for name, tensor in found(recurse=False)
    ]
    try:
        return module.load_state_dict(state_dict, strict=strict, assign=assign)
    except BaseException:
        with torch.no_grad():
            for child, name, tensor, values in before:
                setattr(child, name, tensor)
                if values is not None:
                    tensor.copy_(values)
        raise


def _without_prefix(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    bare: OrderedDict[str, Any] = OrderedDict(state_dict)
    # Versions of the submodules, with which torch upgrades state dicts of earlier releases.
    vars(bare).update(copy.deepcopy(getattr(state_dict, "__dict__", {})))
    consume_prefix_in_state_dict_if_present(bare, PREFIX)
    return bare
