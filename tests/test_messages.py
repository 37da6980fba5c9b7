"""What a terminal would act upon is printed as an escape."""

from __future__ import annotations

import pytest

from dpbench.messages import print_result, say

EVIL = ("\x1b[2J", "\x07", "\r", "\x9b31m", "\u202ecod", "\x7f")


@pytest.mark.parametrize("evil", EVIL)
def test_results_and_messages_have_no_commands_for_a_terminal(
    evil: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(f"one\ttwo {evil}\nü\u00a0統計\n")
    say(f"no {evil}")
    out, err = capsys.readouterr()
    assert out.startswith("one\ttwo \\")
    assert out.endswith("\nü\u00a0統計\n")
    assert evil not in out + err
    assert err.startswith("dpbench: no \\")
