"""An error on one rank is one on all, and none waits for it."""

from __future__ import annotations

import json
from typing import Any

from dpbench.errors import DataError, DpbenchError, UsageError
from dpbench.training.agreement import refused_by_all
from tests.training.jobs import ALONE


class Heard:
    """As if these ranks had said so; None is the caller."""

    def __init__(self, *said: tuple[str, str] | str | None) -> None:
        self.said = said

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        return [
            mine if one is None else (json.dumps(one) if one else "").encode() for one in self.said
        ]


def refusal(ranks: Any, error: DpbenchError | None) -> DpbenchError:
    try:
        with refused_by_all(ranks):
            if error is not None:
                raise error
    except DpbenchError as raised:
        return raised
    raise AssertionError("nothing was refused")


def test_what_one_rank_refuses_is_refused_by_the_others_in_the_same_words() -> None:
    on_rank_1 = refusal(Heard("", None), DataError("a file is cut off"))
    on_rank_0 = refusal(Heard(None, ("DataError", "a file is cut off")), None)
    for error in (on_rank_0, on_rank_1):
        assert type(error) is UsageError
        assert str(error) == "rank 1: a file is cut off"


def test_what_all_refuse_alike_is_raised_as_it_is() -> None:
    error = DataError("no samples")
    assert refusal(Heard(None, ("DataError", "no samples")), error) is error
    assert refusal(ALONE, error) is error
    assert str(refusal(Heard(("UsageError", "no samples"), None), error)) == "rank 0: no samples"


def test_where_all_is_well_nothing_is_raised() -> None:
    ranks: Any = Heard(None, "")
    with refused_by_all(ranks):
        pass
