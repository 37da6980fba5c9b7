"""The definitions of columns: one for each, and none for what is no column."""

from __future__ import annotations

import pytest

from dpbench.report.columns import COLUMNS
from dpbench.report.meanings import CLAIMED, MEANINGS


def test_every_column_is_defined_and_nothing_else() -> None:
    assert set(MEANINGS) == set(COLUMNS)


@pytest.mark.parametrize("key", COLUMNS)
def test_a_definition_is_one_sentence(key: str) -> None:
    meaning = COLUMNS[key].meaning
    assert meaning != CLAIMED
    assert meaning.endswith(".")
    assert ". " not in meaning.replace("et al., ", "")
