"""Another user of the host beside a running sweep: he tries its ports and folders."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - of socket; he may not be able to read Python's own files
import json
import multiprocessing
import os
import pickle
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

NOBODY = 65534
LONGEST_ANSWER = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class Loot:
    """What he got."""

    stores: list[int]
    """Ports at which he could write into a store of torch's."""
    read: list[str]
    """What he saw in the temporary folders."""


class _Bomb:
    """Unpickled, it makes the marker."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self._marker}",)


def attack(ports: Sequence[int], temporary: Path, marker: Path, *, stores: bool) -> Loot:
    """As a user without rights, in a process of his own; with `stores` he looks for those, too."""
    ours, his = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    stranger = context.Process(
        target=_attack, args=(his, list(ports), temporary, marker, stores), daemon=True
    )
    stranger.start()
    his.close()
    try:
        return Loot(**json.loads(ours.recv_bytes()))
    except EOFError:
        stranger.join()
        raise RuntimeError(f"the stranger ended with {stranger.exitcode}") from None
    finally:
        stranger.kill()
        stranger.join()


def _attack(to: Connection, ports: list[int], temporary: Path, marker: Path, stores: bool) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch tells of every store that there is not
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    for port in ports:
        _send_bombs(port, marker)
    let_in = [port for port in ports if stores and _is_open_store(port)]
    to.send_bytes(json.dumps({"stores": let_in, "read": _opened(temporary)}).encode())


def _send_bombs(port: int, marker: Path) -> None:
    bomb = pickle.dumps(_Bomb(marker))
    size = struct.pack("<Q", len(bomb))
    for words in (bomb, size + bomb, struct.pack("<QQ", 0, 0) + size + bomb, bytes(64)):
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=0.3) as victim,
        ):
            victim.sendall(words)
            victim.settimeout(0.1)
            victim.recv(LONGEST_ANSWER)


def _is_open_store(port: int) -> bool:
    patience = timedelta(seconds=0.5)
    try:
        store = TCPStore("127.0.0.1", port, timeout=patience, wait_for_workers=False)
        store.set("stranger", "was here")
    except RuntimeError:
        return False
    return True


def _opened(folder: Path) -> list[str]:
    found: list[str] = []
    for path in folder.glob("dpbench-*"):
        with suppress(OSError):
            found += [str(inside) for inside in path.iterdir()]
    return found
