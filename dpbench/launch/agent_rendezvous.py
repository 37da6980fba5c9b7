"""Rendezvous of a single agent: its store is in its own memory, where no other process can reach
it.

torch's own rendezvous of one host, "static", serves a TCPStore, which takes keys from every process
of the host. dpbench starts one agent per host and tells the ranks itself where they meet (`Part`),
so its agents need a store only for themselves.
"""

from __future__ import annotations

from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from dpbench.rendezvous.launch_variables import LOOPBACK, USUAL_PORT

NAME = "dpbench-alone"


class AloneRendezvous(RendezvousHandler):
    """A rendezvous of one agent with itself; torch's agent calls its methods."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store = HashStore()

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return True  # the launcher serves the ranks' store, so no rank has to

    def next_rendezvous(self) -> RendezvousInfo:
        # The agent must give its ranks some address; nothing listens there.
        nowhere = RendezvousStoreInfo(LOOPBACK, USUAL_PORT)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, nowhere)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: nobody else could join."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return AloneRendezvous(parameters.run_id)


def register() -> None:
    """Register NAME with torch's launcher; may be called repeatedly."""
    rendezvous_handler_registry.register(NAME, _create)
