"""One trial while it runs on several nodes: what the others say of it."""

from __future__ import annotations

import threading

from dpbench.launch.nodes.messages import Result, Run


class Attempt:
    """Filled by the threads that listen to the nodes, read by the one that runs the trial."""

    def __init__(self, order: Run) -> None:
        self.order = order
        self.stop = threading.Event()
        """Set when the ranks of this host need not run any longer."""
        self.failed = False
        """The trial cannot succeed any more."""
        self.results: dict[int, Result] = {}
        """Of the other nodes that take part, by their numbers."""
        self._nodes = frozenset(range(1, len(order.trial.nodes)))
        self._lost: set[int] = set()
        self._changed = threading.Condition()

    def add(self, node: int, result: Result) -> None:
        """A node has ended its part."""
        with self._changed:
            self.results[node] = result
            if result.failed:
                self._fail()
            self._changed.notify_all()

    def lose(self, node: int) -> None:
        """A node is gone; if its part was not done, so is the trial."""
        with self._changed:
            self._lost.add(node)
            if node in self.missing:
                self._fail()
            self._changed.notify_all()

    @property
    def missing(self) -> frozenset[int]:
        """Nodes that have not ended their part."""
        return self._nodes - self.results.keys()

    @property
    def awaited(self) -> frozenset[int]:
        """Nodes that may still end it."""
        return self.missing - self._lost

    def wait(self, seconds: float) -> None:
        """Until all parts have ended or the trial cannot succeed, no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: self.failed or not self.awaited, seconds)

    def wait_for_rest(self, seconds: float) -> None:
        """The same for a trial that was stopped: until nobody is awaited."""
        with self._changed:
            self._changed.wait_for(lambda: not self.awaited, seconds)

    def _fail(self) -> None:
        self.failed = True
        self.stop.set()
