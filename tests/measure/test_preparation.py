"""A module is compiled in place before it is wrapped."""

from __future__ import annotations

import copy

import pytest
from torch import nn

from dpbench.measure.preparation import prepare
from dpbench.specs import WorkloadSpec


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_module_is_itself_with_its_own_names() -> None:
    workload = WorkloadSpec(architecture="a", dataset="d", compile="default")
    module = prepare(nn.Linear(2, 2), workload)
    assert [*module.state_dict()] == ["weight", "bias"]
    assert module._compiled_call_impl is not None
    assert copy.deepcopy(module)._compiled_call_impl is None
