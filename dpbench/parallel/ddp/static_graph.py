"""What the first backward of a static graph shows of all later ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class StaticGraph:
    """How often each parameter's hook fires in a backward, and which parameters some rank uses.

    Attributes:
        used: the parameters that some rank uses, by index; None until the first reduction.
    """

    def __init__(self) -> None:
        self.used: set[int] | None = None
        self._counts: list[int] | None = None
        self._left: list[int] = []  # how often each hook will still fire in this backward

    @property
    def is_known(self) -> bool:
        """Whether a backward has been recorded."""
        return self._counts is not None

    def record(self, fired: Sequence[int], parameters: int) -> None:
        """Note the hooks that fired in the first backward, each as often as it did."""
        counted = Counter(fired)
        self._counts = [counted[index] for index in range(parameters)]

    def begin(self) -> set[int]:
        """Count from the start again; returns the parameters whose hooks do not fire."""
        self._left = (self._counts or []).copy()
        return {index for index, count in enumerate(self._left) if not count}

    def is_last(self, index: int) -> bool:
        """Count a hook that fires; whether it does so for the last time. False while nothing is
        known."""
        if self._counts is None:
            return False
        self._left[index] -= 1
        return self._left[index] <= 0
