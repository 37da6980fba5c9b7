"""Loads a state dict into a wrapped module."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

PREFIX = "module."


def load_unwrapped(
    module: nn.Module, state_dict: Mapping[str, Any], *, strict: bool, assign: bool
) -> Any:
    """Load a state dict, with or without "module." before its keys, as torch does.

    Args:
        module: the bare module, which may itself have a child named "module".
        state_dict: from the bare module, from DataParallel or from DistributedDataParallel.
        strict, assign: as in torch.nn.Module.load_state_dict; `assign` must be False.

    Returns:
        The missing and unexpected keys.

    Raises:
        ValueError: `assign` is True, which would replace the parameters.
        RuntimeError: lists all missing and unexpected keys and all wrong shapes; nothing changes.
    """
    if assign:
        raise ValueError("got assign=True, which would replace the wrapped parameters")
    own = module.state_dict()
    if own.keys().isdisjoint(state_dict) and all(key.startswith(PREFIX) for key in state_dict):
        bare: OrderedDict[str, Any] = OrderedDict(state_dict)
        # Versions of the submodules, with which torch upgrades state dicts of earlier releases.
        vars(bare).update(copy.deepcopy(getattr(state_dict, "__dict__", {})))
        consume_prefix_in_state_dict_if_present(bare, PREFIX)
        state_dict = bare
    shapes = {key: getattr(value, "shape", None) for key, value in own.items()}
    if shapes != {key: getattr(value, "shape", None) for key, value in state_dict.items()}:
        # torch copies what fits before it raises, so a copy of the module has to go first.
        copy.deepcopy(module).load_state_dict(state_dict, strict=strict)
    return module.load_state_dict(state_dict, strict=strict)
