"""Which gradients a backward will bring: the part of the reducer that communicates nothing.

Without options every parameter that is not frozen gets its gradient once. With find_unused some get
none, which the graph tells at the start of the backward, or its end. In a static graph the first
backward tells how often each hook fires, never or several times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dpbench.parallel.ddp.graph_errors import too_late


class Expectation:
    """What is known of the running backward and learnt from those before it.

    The methods are called under the lock of the reducer, but for `fires_without_gradient` and
    `note_local_use`, which change nothing but a set, in one step.

    Attributes:
        tolerates_missing: whether parameters may get no gradient.
        counts: whether hooks may fire several times, so that `fires_again` has to be asked.
        awaits_end: whether only the end of the outermost backward shows which they are.
        idle: parameters from which no gradient is awaited any more.
        unused_everywhere: those that no rank uses, once it is known for good.
    """

    def __init__(self, names: Sequence[str], *, find_unused: bool, static_graph: bool) -> None:
        """
        Args:
            names: of the parameters, for messages.
            find_unused, static_graph: as in ReducerOptions.
        """
        self._names = names
        self._find_unused = find_unused
        self._static_graph = static_graph
        self.tolerates_missing = find_unused or static_graph
        self.counts = static_graph
        self.awaits_end = self.tolerates_missing
        self.idle: set[int] = set()
        self.unused_everywhere: set[int] | None = None
        self._excluded: frozenset[int] = frozenset()
        self._without_gradient: set[int] = set()
        # Where hooks fire several times, the indices that have got a gradient at one of them.
        self._seen: set[int] = set()
        self._used_locally: set[int] = set()
        self._left_out: set[int] = set()
        # Of a static graph.
        self._recording = static_graph
        self._fires: Counter[int] = Counter()
        self._never_used: set[int] = set()
        self._left: dict[int, int] = {}
        # Of a graph that is asked at the start of a backward: what it said, and whether it was
        # right the first time.
        self._unreachable: set[int] = set()
        self._graph_tells: bool | None = None

    def arm(self, excluded: frozenset[int]) -> None:
        """A forward has been made whose backward reduces.

        Args:
            excluded: parameters that take no part in it.
        """
        self._excluded = excluded
        self.idle = {*excluded, *self._never_used}
        self._seen, self._without_gradient, self._left_out = set(), set(), set()
        if self._recording:
            self._fires.clear()  # of a backward that failed
        self._left = {index: times for index, times in self._fires.items() if times > 1}
        self.counts = self._recording or bool(self._left)
        self.awaits_end = self._find_unused or self._recording

    def fires_without_gradient(self, index: int) -> None:
        """The hook of a parameter has fired, but what was accumulated is undefined."""
        self._without_gradient.add(index)

    def fires_again(self, index: int, *, has_gradient: bool) -> bool:
        """Count a hook that has fired; whether it will once more in this backward."""
        if has_gradient:
            self._seen.add(index)
        if self._recording:
            self._fires[index] += 1
            return True
        if index not in self._left:
            return False
        self._left[index] -= 1
        return self._left[index] > 0

    def note_local_use(self, index: int, *, is_late: bool) -> None:
        """A parameter got a gradient from a backward that does not reduce.

        Args:
            index: of the parameter.
            is_late: whether the backward goes through the output of a forward whose gradients
                have been reduced.

        Raises:
            RuntimeError: that reduction has counted the parameter as unused.
        """
        if is_late and index in self._left_out:
            raise RuntimeError(too_late(self._names, index))
        self._used_locally.add(index)

    def ask_the_graph(self, will_run: Callable[[int], bool]) -> set[int]:
        """At the start of the outermost backward: the parameters that it will not reach.

        The answer is about the nodes of this backward, and a reentrant checkpoint begins others in
        it; so it is believed if it was right the first time. If it is wrong later, hooks fire that
        nobody waits for, which is an error.

        Args:
            will_run: whether the node that accumulates the gradient of a parameter will be run.

        Returns:
            Those that are idle from now on and that have no gradient from before.
        """
        indices = range(len(self._names))
        self._unreachable = {index for index in indices if not will_run(index)}
        if not self._graph_tells:
            return set()
        self.idle |= self._unreachable
        return self.without_gradient_yet(self._unreachable)

    def without_gradient_yet(self, indices: set[int]) -> set[int]:
        """Those that have no gradient from backwards that do not reduce either."""
        return indices - self._used_locally

    def end(self, waiting: set[int]) -> None:
        """At the end of the outermost backward: what has not come will not come.

        Args:
            waiting: parameters whose gradients are still awaited.
        """
        if self._recording:
            self._never_used = set(range(len(self._names))).difference(self._fires)
            self._recording = False
        elif self._graph_tells is None:
            self._graph_tells = waiting == self._unreachable - self._excluded
        self.give_up(waiting)

    def give_up(self, waiting: set[int]) -> None:
        """Nobody waits for these parameters any more."""
        self.idle |= waiting

    def missing(self, indices: Iterable[int]) -> list[int]:
        """The parameters among these that got no gradient since the last reduction, though they
        may have one from before; it counts."""
        if not self.tolerates_missing:
            return [i for i in indices if i in self._excluded] if self._excluded else []
        absent = (self.idle | self._without_gradient) - self._seen - self._used_locally
        return [index for index in indices if index in absent] if absent else []

    @property
    def knows_unused_everywhere(self) -> bool:
        """Whether the ranks need not ask each other: the graph is static and nothing frozen."""
        return self.unused_everywhere is not None and not self._excluded

    def learn_unused_everywhere(self, indices: set[int]) -> None:
        """What the ranks have agreed on, which holds for good in a static graph."""
        if self._static_graph and not self._excluded and self.unused_everywhere is None:
            self.unused_everywhere = indices

    def settle(self, left_out: set[int]) -> None:
        """The reduction is done; it has counted these parameters as unused."""
        self._left_out = left_out
        self._used_locally.clear()
