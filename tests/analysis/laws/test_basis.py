"""Terms by name and by mechanism."""

from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.laws.basis import (
    NODE_TERMS,
    TERMS,
    default_basis,
    parse_basis,
    terms,
)
from dpbench.errors import UnknownName, UsageError
from dpbench.specs.traits import IMPLEMENTATIONS


def test_terms_at_group_size_four() -> None:
    four = np.array([4.0])
    values = {name: float(term.value(four)[0]) for name, term in TERMS.items()}
    assert values == {"const": 1, "wrap": 1, "ring": 0.75, "log": 2, "lin": 3}
    one = np.array([1.0])
    assert [float(term.value(one)[0]) for term in TERMS.values()] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("name", [t.name for t in IMPLEMENTATIONS.values() if t.communicates])
def test_only_a_single_process_serves_its_replicas_one_after_the_other(name: str) -> None:
    assert ("lin" in default_basis(name)) == (name in ("dp", "torch-dp"))


def test_a_published_series_is_taken_for_all_reduce_among_processes() -> None:
    assert default_basis(None) == default_basis("local-sgd(4)") == ("const", "ring", "log")


def test_names_are_parsed() -> None:
    assert parse_basis("const, lin") == ("const", "lin")


def test_wrong_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'ring'"):
        parse_basis("const,rign")
    with pytest.raises(UsageError, match="listed twice"):
        parse_basis("ring,ring")
    with pytest.raises(UsageError, match="empty entry"):
        parse_basis("const,")


def test_nodes_have_terms_once_two_measured_sizes_span_several() -> None:
    def names(sizes: tuple[int, ...]) -> list[str]:
        return [term.name for term in terms(("const",), sizes, 8)]

    assert names((1, 8, 16)) == ["const"]
    assert names((1, 8, 16, 32)) == ["const", *NODE_TERMS]
    assert [term.name for term in terms(("const",), (1, 16, 32), None)] == ["const"]
    _, ring, tree = terms(("const",), (8, 16, 32), 8)
    sizes = np.array([8.0, 9.0, 32.0])
    assert ring.value(sizes).tolist() == [0, 0.5, 0.75]
    assert tree.value(sizes).tolist() == [0, 1, 2]
