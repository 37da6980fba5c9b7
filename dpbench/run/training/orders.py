"""Orders from rank 0 of a launch to the other ranks, through the launch's store.

Nobody waits in a collective: there is no process group yet, and preparing data may take long. Where
the ranks share a token, only those that have it can say anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed.distributed_c10d import PrefixStore

from dpbench import errors
from dpbench.codec import decode, encode
from dpbench.errors import DpbenchError, TrainingFailed
from dpbench.launch.signed_store import VARIABLE, SignedStore, given_token
from dpbench.messages import printable
from dpbench.parallel.groups import name_ranks
from dpbench.rendezvous.launch_variables import LaunchVariables
from dpbench.rendezvous.store import open_store
from dpbench.specs.training import TrainingRun, TrainingSpec

PAUSE_SECONDS = 0.05
LINGER_SECONDS = 1.0
LONGEST_SHOWN = 2000
"""Characters of another rank's error."""
KINDS = {
    kind.__name__: kind
    for kind in (errors.UsageError, errors.StoreError, errors.DataError, TrainingFailed)
}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDescription:
    """The report of a rank on itself."""

    device: str
    host: str
    cores: int
    """Cores of its host."""
    trouble: str | None = None
    """Why it cannot train."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """The orders for all ranks."""

    spec: TrainingSpec
    run: TrainingRun
    folder: str
    preparers: tuple[int, ...]
    """The rank that prepares the samples on the host of each rank."""
    resume: str | None = None
    data_dir: str | None = None
    download: bool = False
    """Each preparer fetches what MNIST lacks."""


class Agreed(Exception):
    """An error that rank 0 reports for all."""

    def __init__(self, error: DpbenchError) -> None:
        super().__init__(str(error))
        self.error = error


class Launch:
    """The ranks of one launch, and what they tell each other."""

    def __init__(self, variables: LaunchVariables, environ: Mapping[str, str], seconds: float):
        """Waits for all ranks.

        Raises RuntimeError if the store is not there within `seconds`, TrainingFailed naming the
        ranks that do not come, UsageError for a token that is none.
        """
        self.rank, self.size = variables.rank, variables.world_size
        token = given_token(None, environ) or ""
        store = open_store(variables, environ, timedelta(seconds=seconds))
        of_all = PrefixStore("dpbench train", store)
        # A program may train more than once in one launch, on every rank alike.
        number = of_all.add(f"trainings of {self.rank}", 1)
        self._store = PrefixStore(f"training {number}", of_all)
        self._signed = SignedStore(self._store, token, member=self.rank, members=self.size)
        deadline = time.monotonic() + seconds
        while not self._signed.is_complete():
            if time.monotonic() > deadline:
                raise TrainingFailed(
                    f"{name_ranks(self._signed.missing())} of {self.size} did not come within "
                    f"{seconds:g} s; look at the output there"
                )
            time.sleep(PAUSE_SECONDS)

    def report(self, description: RankDescription) -> None:
        self._say(f"description of {self.rank}", description)

    def descriptions(self) -> list[RankDescription]:
        """The reports of all ranks."""
        keys = (f"description of {rank}" for rank in range(self.size))
        return [self._decoded(RankDescription, self._hear(key)) for key in keys]

    def order(self, orders: Orders | DpbenchError) -> None:
        self._say("orders", orders)

    def orders(self) -> Orders:
        """The orders of rank 0, when it gives them; raises Agreed if it has found an error."""
        return self._decoded(Orders, self._hear("orders"))

    def say_prepared(self, samples: str | DpbenchError | None) -> None:
        """The folder of the samples on this host, or why there are none."""
        self._say(f"samples of {self.rank}", samples)

    def prepared(self, orders: Orders) -> str | None:
        """The folder of the samples on this host, when all hosts have theirs; raises Agreed if one
        could not prepare them."""
        folders = {rank: self._hear(f"samples of {rank}") for rank in {*orders.preparers}}
        folder = folders[orders.preparers[self.rank]]
        return None if folder is None else str(folder)

    def tell(self, error: DpbenchError) -> None:
        """Rank 0 tells what ended the training on it."""
        self._say("end", error)

    def is_told(self, error: DpbenchError) -> bool:
        """Whether rank 0 reports the same, now or in a moment; not if its store is gone."""
        deadline = time.monotonic() + LINGER_SECONDS
        try:
            while not (told := self._signed.get("end")) and time.monotonic() < deadline:
                time.sleep(PAUSE_SECONDS)
            self._store.add("heard", 1)
        except RuntimeError:
            return False
        return bool(told) and str(error) in str(told)

    def linger(self) -> None:
        """Rank 0, which may hold the store, returns when all others have heard its error, or in a
        moment."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self.rank == 0 and time.monotonic() < deadline:
            if self._store.add("heard", 0) >= self.size - 1:
                return
            time.sleep(PAUSE_SECONDS)

    def _say(self, key: str, value: object) -> None:
        content: dict[str, Any] = {"value": encode(value)}
        if isinstance(value, DpbenchError):
            name = next((n for n, kind in KINDS.items() if isinstance(value, kind)), None)
            content = {"error": str(value), "kind": name or TrainingFailed.__name__}
        self._signed.put(key, content)

    def _hear(self, key: str) -> Any:
        """What a rank has said under that key, when it has; raises Agreed for an error."""
        while (found := self._signed.get(key)) is None:
            if key in self._signed.other_token:
                raise TrainingFailed(
                    f"the launch's store holds under {key!r} what no rank of this launch has said; "
                    f"expected the same {VARIABLE} on all nodes, and a network that only they can "
                    "reach"
                )
            time.sleep(PAUSE_SECONDS)
        if "error" in found:
            self._store.add("heard", 1)
            error = KINDS.get(str(found.get("kind")), TrainingFailed)
            raise Agreed(error(printable(str(found["error"]), LONGEST_SHOWN)))
        return found["value"]

    def _decoded(self, kind: type[T], value: Any) -> T:
        try:
            return decode(kind, value)
        except errors.StoreError as error:
            raise TrainingFailed(f"a rank has another version of dpbench ({error})") from None
