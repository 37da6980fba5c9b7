"""A fault of `make faults`, once, and how counts are printed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.faults import FAULTS, CannotTry, Fault, expect, main


@pytest.mark.full
def test_a_fault_is_survived() -> None:
    (fault,) = (one for one in FAULTS if one.name == "a rank killed at a random moment")
    assert [*fault.run(1)] == [None]


def test_what_held_is_counted_and_problems_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def run(tries: int) -> Iterator[str | None]:
        yield from (None, expect(it_held=False), expect(it_held=False))[:tries]

    def impossible(tries: int) -> Iterator[str | None]:
        raise CannotTry("mounting needs root")
        yield

    faults = (
        Fault(name="a pretended fault", promise="nothing", tries=3, run=run),
        Fault(name="a mount", promise="", tries=1, run=impossible),
    )
    assert main([], faults) == 1
    out = capsys.readouterr().out
    assert "a pretended fault: 1 of 3 held (nothing); " in out
    assert "  2 × not so: it held" in out
    assert "a mount: not tried here: mounting needs root" in out
    assert main(["pretended", "--tries", "1"], faults) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["earthquake"], faults)
