"""Orders from rank 0 of a launch to the other ranks, through the launch's store.

Nobody waits in a collective: there is no process group yet, and preparing data may take long. A
store takes keys from whoever reaches it: where the ranks share a token, what they say is signed.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed.distributed_c10d import PrefixStore

from dpbench import errors
from dpbench.codec import decode, encode
from dpbench.errors import DpbenchError, TrainingFailed
from dpbench.launch.nodes.handshake import VARIABLE, given_token
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSamples:
    """Samples on one host."""

    folder: str | None


class Agreed(Exception):
    """An error that rank 0 says for all."""

    def __init__(self, error: DpbenchError) -> None:
        super().__init__(str(error))
        self.error = error


class Launch:
    """The ranks of one launch, and their store."""

    def __init__(self, variables: LaunchVariables, environ: Mapping[str, str], seconds: float):
        """Raises RuntimeError if the store is not there within `seconds`, UsageError for a token
        that is none."""
        self.rank = variables.rank
        self.size = variables.world_size
        self._token = given_token(None, environ)
        store = open_store(variables, environ, timedelta(seconds=seconds))
        of_all = PrefixStore("dpbench train", store)
        # A program may train more than once in one launch, on every rank alike.
        number = of_all.add(f"trainings of {self.rank}", 1)
        self._store = PrefixStore(f"training {number}", of_all)
        self._name = f"training {number} of {environ.get('TORCHELASTIC_RUN_ID')}"

    def report(self, description: RankDescription) -> None:
        self._say(f"description of {self.rank}", description)

    def descriptions(self, seconds: float) -> list[RankDescription]:
        """The reports of all ranks; raises TrainingFailed naming those that are silent for so
        long."""
        deadline = time.monotonic() + seconds
        while silent := [r for r in range(self.size) if not self._is_said(f"description of {r}")]:
            if time.monotonic() > deadline:
                raise TrainingFailed(
                    f"{name_ranks(silent)} of {self.size} did not come within {seconds:g} s; look "
                    "at the output there"
                )
            time.sleep(PAUSE_SECONDS)
        return [self._hear(f"description of {rank}", RankDescription) for rank in range(self.size)]

    def order(self, orders: Orders | DpbenchError) -> None:
        self._say("orders", orders)

    def orders(self) -> Orders:
        """The orders of rank 0, when it gives them; raises Agreed if it has found an error."""
        return self._hear("orders", Orders)

    def say_prepared(self, samples: str | DpbenchError | None) -> None:
        """The folder of the samples on this host."""
        if isinstance(samples, DpbenchError):
            self._say(f"samples of {self.rank}", samples)
        else:
            self._say(f"samples of {self.rank}", PreparedSamples(folder=samples))

    def prepared(self, orders: Orders) -> str | None:
        """The folder of the samples on this host, when all hosts have theirs; raises Agreed if one
        could not prepare them."""
        folders = {
            rank: self._hear(f"samples of {rank}", PreparedSamples) for rank in {*orders.preparers}
        }
        return folders[orders.preparers[self.rank]].folder

    def tell(self, error: DpbenchError) -> None:
        """Rank 0 says what ended the training on it."""
        self._say("end", error)

    def is_told(self, error: DpbenchError) -> bool:
        """Whether rank 0 says the same, now or in a moment; not if its store is gone."""
        deadline = time.monotonic() + LINGER_SECONDS
        try:
            while not self._is_said("end") and time.monotonic() < deadline:
                time.sleep(PAUSE_SECONDS)
            told = self._read("end").get("error", "") if self._is_said("end") else ""
            self._store.add("heard", 1)
        except (RuntimeError, TrainingFailed):
            return False
        return str(error) in str(told)

    def linger(self) -> None:
        """Rank 0, which may hold the store, returns when all others have heard its error, or in a
        moment."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self.rank == 0 and time.monotonic() < deadline:
            if self._store.add("heard", 0) >= self.size - 1:
                return
            time.sleep(PAUSE_SECONDS)

    def _is_said(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _say(self, key: str, value: object) -> None:
        if isinstance(value, DpbenchError):
            name = next((n for n, kind in KINDS.items() if isinstance(value, kind)), None)
            content: object = {"error": str(value), "kind": name or TrainingFailed.__name__}
        else:
            content = encode(value)
        text = json.dumps(content)
        self._store.set(key, f"{self._signature(key, text)} {text}")

    def _hear(self, key: str, kind: type[T]) -> T:
        while not self._is_said(key):
            time.sleep(PAUSE_SECONDS)
        content = self._read(key)
        if "error" in content:
            self._store.add("heard", 1)
            error = KINDS.get(str(content.get("kind")), TrainingFailed)
            raise Agreed(error(printable(str(content["error"]), LONGEST_SHOWN)))
        try:
            return decode(kind, content)
        except errors.StoreError as error:
            raise TrainingFailed(f"{self._forged(key)} ({error})") from None

    def _read(self, key: str) -> dict[str, Any]:
        """The report of a rank; raises TrainingFailed if there is none."""
        signed, _, text = self._store.get(key).decode(errors="replace").partition(" ")
        if not hmac.compare_digest(signed.encode(), self._signature(key, text).encode()):
            raise TrainingFailed(self._forged(key))
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise TrainingFailed(self._forged(key)) from None

    def _signature(self, key: str, text: str) -> str:
        """Signs what is said under that key in this training; "-" where there is no token."""
        if self._token is None:
            return "-"
        said = "\0".join((self._name, key, text))
        return hmac.new(self._token.encode(), said.encode(), "sha256").hexdigest()

    def _forged(self, key: str) -> str:
        return (
            f"the launch's store holds under {key!r} what no rank of this launch has said; "
            f"expected the same {VARIABLE} on all nodes, and a network that only they can reach"
        )
