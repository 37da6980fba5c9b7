"""The table of latencies and bandwidths that NCCL prints when it tunes itself.

NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING makes rank 0 print it, a row a collective and a cell
"latency/bandwidth" in µs and GB/s for each algorithm and protocol; a bandwidth of 0 means that the
pair is switched off. Since 2.19 it comes in blocks of three algorithms:

    host:pid:tid [0] NCCL INFO   Algorithm   |         Tree         |         Ring         | …
    host:pid:tid [0] NCCL INFO   Protocol    |   LL | LL128 | Simple |   LL | LL128 | Simple | …
    host:pid:tid [0] NCCL INFO     AllReduce | 16.8/ 0.5 | 31.0/ 0.0 | …

before, in one whose header "Latency/AlgBw" has cells "Tree/ LL".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.communication.nccl import Hop, NcclModel, Tuned
from dpbench.errors import UsageError
from dpbench.units import GIGA, MICRO

PROTOCOLS = ("LL", "LL128", "Simple")
REMEDY = "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING"
_LINE = re.compile(r"NCCL INFO\s+(Algorithm|Latency/AlgBw|AllReduce)\s*\|(.*)")
_CELL = re.compile(r"\s*([0-9]+\.[0-9]+)/\s*([0-9]+\.[0-9]+)\s*")
_SHAPE = re.compile(r"nRanks (\d+) nNodes (\d+)")


def parse_tuning_table(text: str) -> dict[tuple[str, str], tuple[float, float]]:
    """{(algorithm, protocol): (latency in µs, bandwidth in GB/s)} of all-reduce.

    Of several tables, one a communicator, the first. Raises UsageError if there is none.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    columns: list[tuple[str, str]] = []
    for kind, rest in _LINE.findall(text):
        cells = [cell.strip() for cell in rest.split("|") if cell.strip()]
        if kind == "Algorithm":
            columns = [(algorithm, protocol) for algorithm in cells for protocol in PROTOCOLS]
        elif kind == "Latency/AlgBw":
            columns = [_pair(cell) for cell in cells]
        else:
            if len(cells) != len(columns):
                raise UsageError(
                    f"AllReduce has {len(cells)} cells below {len(columns)} columns in the NCCL "
                    f"log's table, which is damaged; {REMEDY}"
                )
            if found.keys() & {*columns}:
                break  # the next communicator's
            found.update(zip(columns, _numbers(cells), strict=True))
            columns = []
    if not found:
        raise UsageError(f"no table of all-reduce algorithms in the NCCL log; {REMEDY}")
    return found


def nccl_cost(text: str, *, hop: Hop = "nvlink") -> CollectiveCost:
    """What NCCL expects on the network that its log is of.

    Raises UsageError if the log lacks the table or the number of ranks and nodes.
    """
    ranks, nodes = _shape(text)
    tuned = {
        pair: Tuned(latency_seconds=latency * MICRO, bytes_per_second=bandwidth * GIGA)
        for pair, (latency, bandwidth) in parse_tuning_table(text).items()
        if bandwidth > 0
    }
    if ranks < 2 or not {"Ring", "Tree"} & {algorithm for algorithm, _ in tuned}:
        raise UsageError(
            "the NCCL log is of one rank, or of a run without Ring and Tree; expected that of a "
            "run of several ranks without NCCL_ALGO"
        )
    model = NcclModel(
        tuned=tuned,
        group_size=ranks,
        ranks_per_node=-(-ranks // nodes),
        hop=hop,
    )
    return CollectiveCost(
        curves=(),
        model=model.seconds,
        name="the network of the NCCL log",
        largest=ranks if nodes == 1 else None,
        assumptions=(
            f"collectives take what NCCL expected of {ranks} ranks on {nodes} nodes by its log; "
            "at other group sizes the faster of Ring and Tree by its own formulas",
        ),
    )


def _shape(text: str) -> tuple[int, int]:
    """Ranks and nodes of the communicator that the first table is of: its line stands before."""
    table = _LINE.search(text)
    before = _SHAPE.findall(text, 0, table.start() if table else len(text))
    if not before:
        raise UsageError(
            f'no line with "nRanks … nNodes …" before a table in the NCCL log; {REMEDY}'
        )
    ranks, nodes = before[-1]
    return int(ranks), int(nodes)


def _pair(cell: str) -> tuple[str, str]:
    algorithm, _, protocol = cell.partition("/")
    return algorithm.strip(), protocol.strip()


def _numbers(cells: Iterable[str]) -> Iterable[tuple[float, float]]:
    for cell in cells:
        if (match := _CELL.fullmatch(cell)) is None:
            raise UsageError(f"{cell!r} in the NCCL log's table is not latency/bandwidth; {REMEDY}")
        yield float(match[1]), float(match[2])
