"""Changes to the files of a results folder: of single bytes, of lines, of values in their JSON.

Most changes of values are such that the reader still accepts the file, so that they reach what is
behind it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from dpbench.codec import decode
from dpbench.errors import StoreError
from dpbench.specs import TrialSpec

Place = tuple[str | int, ...]
"""Keys and indices from the root of a JSON document to one of its values."""

FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e-9, 1e155, 1e308, float("nan"), float("inf"), "nan", "-inf")
INTEGERS = (0, 1, -1, 2, 3, 2**31, 2**63, 10**30, 10**400)
WORDS = ("", " ", "x" * 500, "\n", "\x1b[31m", "[bold]", "a|b,c\t", "\ud800", "ß∞", "2025-13-99")
NAMES = ("single", "ddp", "local-sgd", "threads", "none", "failed", "skipped", "wrong_gradients")
OTHER = (None, True, [], {}, [[]], {"a": 1}, [0.0], 1, 0.5, "x")
BYTES = (b"", b"\0", b"\xff", b"{", b'"', b",", b"\n", b"1e999", b"NaN", b"[" * 2000)


@dataclass(frozen=True, slots=True)
class Change:
    """What happens at one place of a document."""

    place: Place
    action: str
    value: Any = None

    def of(self, document: Any) -> None:
        """Changes the document; one without such a place is left as it is."""
        *way, last = self.place
        try:
            for key in way:
                document = document[key]
            _ACTIONS[self.action](document, last, self.value)
        except (KeyError, IndexError, TypeError):
            return


def _remove(parent: Any, key: Any, _: Any) -> None:
    del parent[key]


def _replace(parent: Any, key: Any, value: Any) -> None:
    parent[key] = value


def _repeat(parent: Any, key: Any, _: Any) -> None:
    parent[key] = parent[key] * 2


def _shorten(parent: Any, key: Any, _: Any) -> None:
    parent[key] = parent[key][:1]


def _flood(parent: Any, key: Any, value: Any) -> None:
    """Gives every number of it the value."""
    parent[key] = _flooded(parent[key], value)


def _flooded(node: Any, value: Any) -> Any:
    if isinstance(node, list):
        return [_flooded(item, value) for item in node]
    if isinstance(node, dict):
        return {key: _flooded(item, value) for key, item in node.items()}
    return value if isinstance(node, float) else node


_ACTIONS: dict[str, Callable[[Any, Any, Any], None]] = {
    "remove": _remove,
    "replace": _replace,
    "repeat": _repeat,
    "shorten": _shorten,
    "flood": _flood,
}


def places(node: Any, here: Place = ()) -> Iterator[Place]:
    """Every place of a document but its root."""
    children: Any = ()
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, list):
        children = enumerate(node)
    for key, child in children:
        yield (*here, key)
        yield from places(child, (*here, key))


def value_at(document: Any, place: Place) -> Any:
    for key in place:
        document = document[key]
    return document


def changes(document: Any) -> st.SearchStrategy[Change]:
    """Of any place, as often of a deep as of a shallow one."""
    by_depth: dict[int, list[Place]] = {}
    for place in places(document):
        by_depth.setdefault(len(place), []).append(place)
    somewhere = st.sampled_from(sorted(by_depth)).flatmap(lambda n: st.sampled_from(by_depth[n]))
    return somewhere.flatmap(lambda place: _changes_at(place, value_at(document, place)))


def _changes_at(place: Place, value: Any) -> st.SearchStrategy[Change]:
    def replaced(values: tuple[Any, ...]) -> st.SearchStrategy[Change]:
        return st.sampled_from(values).map(lambda value: Change(place, "replace", value))

    possible = [replaced(OTHER), st.just(Change(place, "remove"))]
    if isinstance(value, list):
        possible += [st.just(Change(place, action)) for action in ("repeat", "shorten")]
    if isinstance(value, (list, dict)):
        possible += [st.sampled_from(FLOATS).map(lambda v: Change(place, "flood", v))] * 4
    if isinstance(value, str):
        possible += [replaced(WORDS), replaced(NAMES)] * 2
    elif isinstance(value, float):
        possible += [replaced(FLOATS)] * 4
    elif isinstance(value, int):
        possible += [replaced(INTEGERS)] * 4
    return st.one_of(possible)


def sealed(record: dict[str, Any]) -> str:
    """The line of a record, under the identifier of its trial, so that it is read at all."""
    with contextlib.suppress(StoreError):
        record = {**record, "trial_id": decode(TrialSpec, record.get("trial")).trial_id}
    return json.dumps(record)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Bytes removed, replaced or written twice at up to three places."""
    spot = st.tuples(
        st.integers(0, len(content)), st.integers(0, 40), st.sampled_from((*BYTES, None))
    )

    def damage(spots: list[tuple[int, int, bytes | None]]) -> bytes:
        found = content
        for start, length, put in spots:
            piece = found[start : start + length]
            found = found[:start] + (piece * 2 if put is None else put) + found[start + length :]
        return found

    return st.lists(spot, min_size=1, max_size=3).map(damage)
