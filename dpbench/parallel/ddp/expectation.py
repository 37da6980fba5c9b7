"""The gradients that a backward should produce, and errors if it produces others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. "
    "This error indicates that your "
)
UNUSED = (
    "module has parameters that were not used in producing loss, or that a backward failed. You "
    "can allow the former by passing the keyword argument `find_unused_parameters=True` to "
    "`DistributedDataParallel`, and avoid it by making sure that all parameters take part in the "
    "outputs and all `forward` function outputs participate in calculating loss. To see the "
    "collectives of each rank, set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO "
    "or DETAIL."
)
CHANGED = (
    "training graph has changed in this iteration, e.g., one parameter is used in first "
    "iteration, but then got unused in the second iteration. this is not compatible with "
    "static_graph set to True."
)


class Expectation:
    """Knowledge about the running backward, learnt from it and from those before it.

    The methods are called under the reducer's lock, except for `fires_without_gradient` and
    `note_local_use`, which only change a set, in one atomic step.

    Attributes:
        tolerates_missing: whether parameters may get no gradient.
        counts: whether hooks may fire several times, so that `fires_again` has to be called.
        awaits_end: whether only the end of the outermost backward shows which gradients are
            missing.
        idle: parameters whose gradient is no longer awaited.
        unused_everywhere: parameters that no rank uses, once that is known for good.
        never_used: parameters without a gradient in the recorded backward of a static graph.
        each_comes_once: whether each other one got its gradient once in that backward.
    """

    def __init__(self, names: Sequence[str], *, find_unused: bool, static_graph: bool) -> None:
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
        # If hooks fire several times: the indices for which one of them had a gradient.
        self._seen: set[int] = set()
        self._used_locally: set[int] = set()
        self._left_out: set[int] = set()
        # For a static graph.
        self._recording = static_graph
        self._fires: Counter[int] = Counter()
        self.never_used: set[int] = set()
        self.each_comes_once = False
        self._left: dict[int, int] = {}
        # Of a graph that is asked at the start of a backward: what it said, and whether it was
        # right the first time.
        self._unreachable: set[int] = set()
        self._graph_tells: bool | None = None

    def arm(self, excluded: frozenset[int]) -> None:
        """Prepare for the backward of a forward that reduces.

        Args:
            excluded: parameters that take no part in that forward.
        """
        self._excluded = excluded
        self.idle = {*excluded, *self.never_used}
        self._seen, self._without_gradient, self._left_out = set(), set(), set()
        if self._recording:
            self._fires.clear()  # left over from a backward that failed
        self._left = {index: times for index, times in self._fires.items() if times > 1}
        self.counts = self._recording or bool(self._left)
        self.awaits_end = self._find_unused or self._recording

    def fires_without_gradient(self, index: int) -> None:
        """Note that a parameter's hook fired with an undefined gradient."""
        self._without_gradient.add(index)

    def fires_again(self, index: int, *, has_gradient: bool) -> bool:
        """Count a call of the hook; returns whether the hook will fire again in this backward."""
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
        """Note that a parameter got a gradient from a backward that does not reduce.

        Args:
            index: the parameter's index.
            is_late: whether the backward goes through the output of a forward whose gradients
                have been reduced.

        Raises:
            RuntimeError: that reduction already counted the parameter as unused.
        """
        if is_late and index in self._left_out:
            raise RuntimeError(
                f"parameter {self._names[index]!r} got a gradient after the reduction of the last "
                "forward had counted it as unused, so that nothing averages it. Call backward once "
                "for each forward, on the sum of the losses; or make the other forwards under "
                "no_sync()."
            )
        self._used_locally.add(index)

    def ask_the_graph(self, will_run: Callable[[int], bool]) -> None:
        """Find, at the start of the outermost backward, the parameters that it will not reach.

        The graph's answer covers the nodes of this backward, but a reentrant checkpoint starts
        further ones within it; so the answer is trusted only if it was right the first time. If it
        is wrong later, unexpected hooks fire, which is an error.

        Args:
            will_run: tells whether the node that accumulates a parameter's gradient will run.
        """
        indices = range(len(self._names))
        self._unreachable = {index for index in indices if not will_run(index)}
        if self._graph_tells:
            self.idle |= self._unreachable

    def end(self, waiting: set[int]) -> None:
        """Stop waiting for gradients that have not arrived, at the end of the outermost backward.

        Args:
            waiting: parameters whose gradients are still awaited.
        """
        if self._recording:
            self.never_used = set(range(len(self._names))).difference(self._fires)
            regular = set(self._fires.values()) == {1} and not self._without_gradient
            self.each_comes_once = regular and not self._excluded
            self._recording = False
        elif self._graph_tells is None:
            self._graph_tells = waiting == self._unreachable - self._excluded
        self.give_up(waiting)

    def give_up(self, waiting: set[int]) -> None:
        """Stop waiting for these parameters."""
        self.idle |= waiting

    def missing(self, indices: Iterable[int]) -> list[int]:
        """The parameters among these without a gradient since the last reduction. An earlier
        gradient still counts in the average."""
        if not self.tolerates_missing:
            return [i for i in indices if i in self._excluded] if self._excluded else []
        absent = (self.idle | self._without_gradient) - self._seen - self._used_locally
        return [index for index in indices if index in absent] if absent else []

    @property
    def knows_unused_everywhere(self) -> bool:
        """Whether the ranks need not ask each other: the graph is static and nothing frozen."""
        return self.unused_everywhere is not None and not self._excluded

    def learn_unused_everywhere(self, indices: set[int]) -> None:
        """Store what the ranks agreed on; in a static graph it holds for good."""
        if self._static_graph and not self._excluded and self.unused_everywhere is None:
            self.unused_everywhere = indices

    def settle(self, left_out: set[int]) -> None:
        """Note that the reduction is done and has counted these parameters as unused."""
        self._left_out = left_out
        self._used_locally.clear()

    def unfinished(self, missing: Sequence[int], rank: int) -> str:
        """The message on the rank whose parameters at the indices `missing` got no gradient."""
        return (
            f"{UNFINISHED}{CHANGED if self._static_graph else UNUSED}\n"
            f"Parameter indices which did not receive grad for rank {rank}: "
            f"{' '.join(map(str, missing))}\n"
            f"Parameters which did not receive grad for rank {rank}: {self._listed(missing)}"
        )

    def unfinished_elsewhere(self, missing: Sequence[int]) -> str:
        """The message on the ranks that did finish, when another could not."""
        return (
            f"{UNFINISHED}{CHANGED if self._static_graph else UNUSED}\n"
            f"Parameters which did not receive grad on another rank: {self._listed(missing)}"
        )

    def fired_too_often(self, index: int, missing: Sequence[int]) -> str:
        """The message for a parameter whose gradient is accumulated more often in one backward than
        expected, while those at the indices `missing` have not got one."""
        if self._static_graph:
            return (
                "Your training graph has changed in this iteration, e.g., one parameter is unused "
                "in first iteration, but then got used in the second iteration. this is not "
                "compatible with static_graph set to True. It is parameter "
                f"{self._names[index]} at index {index}."
            )
        return (
            "Expected to mark a variable ready only once. This error is caused by a backward "
            "nested in another, such as a reentrant checkpoint of a layer that is used twice; "
            "checkpoint with use_reentrant=False, or set static_graph=True if the graph is always "
            f"the same. Parameter at index {index} with name {self._names[index]} has been marked "
            "as ready twice."
            + (
                " Or did the backward before this one leave out parameters? These have got no "
                f"gradient: {self._listed(missing)}."
                if missing
                else ""
            )
        )

    def _listed(self, indices: Sequence[int]) -> str:
        return ", ".join(self._names[index] for index in indices)
