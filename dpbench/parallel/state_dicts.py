"""Loading a state dict into a wrapped module."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

PREFIX = "module."


class LoadsUnwrapped:
    """Gives a wrapper the `load_state_dict` of both wrappers."""

    module: nn.Module

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load into `module`, all or nothing, with or without "module." before the keys.

        Args:
            state_dict: from the bare module, which may have a child named "module", from
                DataParallel or from DistributedDataParallel.
            strict, assign: as in torch.nn.Module.load_state_dict; `assign` must be False.

        Returns:
            The missing and unexpected keys.

        Raises:
            ValueError: `assign` is True, which would replace the parameters.
            RuntimeError: lists all missing and unexpected keys and all wrong shapes.
        """
        if assign:
            raise ValueError("got assign=True, which would replace the wrapped parameters")
        current = self.module.state_dict()
        if current.keys().isdisjoint(state_dict) and all(k.startswith(PREFIX) for k in state_dict):
            bare: OrderedDict[str, Any] = OrderedDict(state_dict)
            # Versions of the submodules, with which torch upgrades state dicts of earlier releases.
            vars(bare).update(copy.deepcopy(getattr(state_dict, "__dict__", {})))
            consume_prefix_in_state_dict_if_present(bare, PREFIX)
            state_dict = bare
        shapes = {key: getattr(value, "shape", None) for key, value in current.items()}
        if shapes != {key: getattr(value, "shape", None) for key, value in state_dict.items()}:
            # torch copies what fits before it raises, so a copy of the module has to go first.
            copy.deepcopy(self.module).load_state_dict(state_dict, strict=strict)
        return self.module.load_state_dict(state_dict, strict=strict)
