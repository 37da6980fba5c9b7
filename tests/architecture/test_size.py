"""Parameters are counted as they are, fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dpbench import architecture
from dpbench.architecture.size import count_parameters

COUNTS_ALL = """
import sys
from dpbench import architecture
from dpbench.architecture.size import count_parameters
for name in architecture.names():
    count_parameters(architecture.load(name))
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.parametrize("name", ["mlp", "tabular", "gpt:size=nano", "resnet"])
def test_the_parameters_are_those_of_a_model_with_values(name: str) -> None:
    loaded = architecture.load(name)
    assert count_parameters(loaded) == sum(p.numel() for p in loaded.build_model().parameters())


def test_no_architecture_needs_the_compiler_to_be_counted() -> None:
    subprocess.run([sys.executable, "-c", COUNTS_ALL], check=True)
