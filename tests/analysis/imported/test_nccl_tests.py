"""Output of nccl-tests: known answers, what a log does not tell, the line of what is wrong."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbench.analysis.imported.nccl_tests import ImportedCollective, read_nccl_tests
from dpbench.errors import StoreError, UnknownName, UsageError
from tests.analysis.imported.nccl_log import HEADER, log, ranks, row

MIB = 2**20
ALL_REDUCE = 2 * 7 / 8
SAMPLE = log(
    row(8, (38.3, 37.52), ALL_REDUCE),
    "node1:41:41 [0] NCCL INFO Channel 00 : 0 1 2 3\n",
    row(MIB, (69.31, 68.8), ALL_REDUCE),
    row(128 * MIB, (1078.4, 1076.9), ALL_REDUCE),
)


def read(folder: Path, text: str, collective: str | None = None) -> tuple[ImportedCollective, ...]:
    path = folder / "log.txt"
    path.write_text(text)
    return read_nccl_tests(path, collective)


def test_a_table_has_two_places(tmp_path: Path) -> None:
    """1 MiB in 69.31 µs: 15.129 GB/s, busbw 7/4 of it."""
    found = read(tmp_path, SAMPLE)
    assert [one.label for one in found] == [
        "all_reduce on nccl ×8, out of place",
        "all_reduce on nccl ×8, in place",
    ]
    first = found[0]
    assert (first.dtype, first.reduction, first.root, first.notes) == ("float", "sum", None, ())
    assert (first.group_size, first.hosts, first.devices) == (8, 1, ("NVIDIA A100",))
    assert [size.nbytes for size in first.sizes] == [8, MIB, 128 * MIB]
    size = first.sizes[1]
    assert size.seconds.value == pytest.approx(69.31e-6)
    assert (size.seconds.interval, size.seconds.sample_size) == (None, 1)
    assert size.algorithm_bandwidth.value == pytest.approx(15.1288e9, rel=1e-5)
    assert size.bus_bandwidth is not None
    assert size.bus_bandwidth.value == pytest.approx(15.1288e9 * 7 / 4, rel=1e-5)
    assert (size.count, size.wrong) == (MIB // 4, 0)


SIZES = st.lists(st.integers(4, 2**33), min_size=1, max_size=12, unique=True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SIZES, st.floats(2.0, 1e6), st.floats(1e-3, 500.0), st.integers(1, 64))
def test_whatever_it_prints_is_read(
    tmp_path: Path, sizes: list[int], latency: float, bandwidth: float, count: int
) -> None:
    """Times of latency + size ÷ bandwidth; 500 GB/s is 500,000 bytes per µs."""
    times = {nbytes: latency + nbytes / bandwidth / 1e3 for nbytes in sizes}
    factor = 2 * (count - 1) / count
    text = log(*(row(n, (times[n], times[n] * 2), factor) for n in sizes), count=count)
    one, other = read(tmp_path, text)
    assert [size.nbytes for size in one.sizes] == sorted(sizes)
    for size, twice in zip(one.sizes, other.sizes, strict=True):
        assert size.seconds.value == pytest.approx(times[size.nbytes] * 1e-6, rel=3e-3)
        assert twice.seconds.value == pytest.approx(2 * size.seconds.value, rel=5e-3)


def test_tables_one_below_another(tmp_path: Path) -> None:
    gather = row(MIB, (50.0,), 1 / 2, kind="float    none      -1", wrong="N/A")
    header = "\n".join(line[:84] for line in HEADER.splitlines())
    text = SAMPLE + log(gather, count=2, program="all_gather").replace(HEADER, f"{header}\n")
    found = read(tmp_path, text)
    assert [one.label for one in found] == [
        "all_reduce on nccl ×8, out of place",
        "all_reduce on nccl ×8, in place",
        "all_gather on nccl ×2, out of place",
    ]
    assert found[2].reduction is None
    assert found[2].notes == ("nobody checked the results (-c 0, or a log without #wrong)",)


def test_types_and_reductions_are_apart(tmp_path: Path) -> None:
    text = log(
        *(
            row(8, (9.0, 9.0), ALL_REDUCE, kind=f"{t} {op} -1")
            for t in ("half", "float")
            for op in ("sum", "max")
        )
    )
    assert [(one.dtype, one.reduction) for one in read(tmp_path, text)[::2]] == [
        *(("half", "sum"), ("half", "max"), ("float", "sum"), ("float", "max")),
    ]


def test_sizes_with_wrong_results_are_left_out_and_counted(tmp_path: Path) -> None:
    text = log(row(8, (9.0,) * 2, ALL_REDUCE), row(16, (9.0,) * 2, ALL_REDUCE, wrong="3"))
    first = read(tmp_path, text)[0]
    assert [size.nbytes for size in first.sizes] == [8]
    assert first.notes == ("1 of 2 sizes had wrong results and are left out",)


def test_a_log_that_names_no_collective(tmp_path: Path) -> None:
    """At 8 ranks only the busbw of an all-reduce is 7/4 of algbw; at 2, that of a send and receive
    is the same."""
    rows = row(MIB, (69.31, 68.8), ALL_REDUCE)
    found = read(tmp_path, log(rows, program=None))
    assert found[0].collective == "all_reduce"
    assert found[0].notes == (
        "the log does not name its collective: all_reduce, the only one that fits its columns",
    )
    two = log(row(MIB, (69.31, 68.8), 1.0), count=2, program=None)
    with pytest.raises(UsageError, match="all_reduce and send_recv fit its columns; give --coll"):
        read(tmp_path, two)
    assert read(tmp_path, two, "all_reduce")[0].notes == (
        "the log does not name its collective: all_reduce, as asked",
    )


def test_the_command_above_names_it_too(tmp_path: Path) -> None:
    text = f"$ ./build/all_reduce_perf -g 8\n{log(row(8, (9.0, 9.0), ALL_REDUCE), program=None)}"
    assert read(tmp_path, text)[0].notes == ()
    with pytest.raises(UsageError, match="the log names all_reduce_perf; leave it out"):
        read(tmp_path, text, "all_gather")
    with pytest.raises(UnknownName, match="Did you mean 'all_reduce'"):
        read(tmp_path, text, "allreduce")


def test_without_its_ranks_there_is_no_busbw(tmp_path: Path) -> None:
    found = read(tmp_path, SAMPLE.replace(ranks(8), ""))[0]
    assert (found.group_size, found.hosts, found.label) == (
        *(None, None),
        "all_reduce on nccl, out of place",
    )
    assert all(size.bus_bandwidth is None for size in found.sizes)
    assert "busbw cannot be told" in found.notes[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (SAMPLE, "", "log.txt: no line '# size count type …' in it"),
        ("69.31", "fast", "line 19: expected a number as a time, not 'fast'"),
        ("69.31", "0.00", "line 19: expected a number above zero as a time"),
        ("  69.31   15.13", "  69.31   14.13", "line 19: expected algbw of 15.13 GB/s"),
        ("15.13   26.48", "15.13   15.13", "line 19: expected busbw of 26.48 GB/s"),
        ("1048576  ", "1048576 9 ", "line 19: expected 13 values"),
        ("1048576 ", "8 ", r"line 19: expected each size once \(it is on line 17\)"),
        ("(us)", "(ms)", "line 16: expected times in microseconds"),
        ("time   algbw", "time   speed", "line 15: expected the columns time, algbw, busbw"),
        (
            "all_reduce_perf",
            "hypercube_perf",
            "line 15: a table of hypercube_perf; expected one of all_reduce_perf, ",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in SAMPLE
    with pytest.raises(StoreError, match=words) as caught:
        read(tmp_path, SAMPLE.replace(old, new))
    assert "\n" not in str(caught.value)


def test_wrong_results_that_no_column_tells_of_refuse_the_log(tmp_path: Path) -> None:
    text = SAMPLE.replace("#wrong", "error").replace("values : 0 OK", "values : 3 FAILED")
    with pytest.raises(StoreError, match="results were wrong"):
        read(tmp_path, text)


edits = st.tuples(
    st.integers(0, len(SAMPLE)),
    st.integers(0, 30),
    st.text(st.sampled_from("0123456789.-+eE#|NA \n\t\0étime"), max_size=12),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(edits, min_size=1, max_size=3))
def test_a_damaged_log_is_read_or_refused(
    tmp_path: Path, changes: list[tuple[int, int, str]]
) -> None:
    text = SAMPLE
    for start, length, new in changes:
        text = text[:start] + new + text[start + length :]
    with contextlib.suppress(StoreError, UsageError):
        assert read(tmp_path, text)


def test_rows_in_which_nothing_was_sent_are_left_out(tmp_path: Path) -> None:
    """With -b 8, small messages of an all_gather are rounded down to 0 bytes, more than once."""
    nothing = "0 0 float none -1 0.33 0.00 0.00 0 0.36 0.00 0.00 0\n"
    sent = row(MIB, (69.31, 68.8), 7 / 8, kind="float none -1")
    first, _ = read(tmp_path, log(nothing, nothing, sent, program="all_gather"))
    assert [size.nbytes for size in first.sizes] == [MIB]
    assert first.notes == ("2 rows of size 0, in which nothing was sent, left out",)
    with pytest.raises(StoreError, match="expected a size above 0 in one of the rows"):
        read(tmp_path, log(nothing, nothing, program="all_gather"))


def test_a_table_of_wrong_results_says_that_it_is_empty(tmp_path: Path) -> None:
    first, _ = read(tmp_path, log(row(MIB, (69.31, 68.8), ALL_REDUCE, wrong="3")))
    assert (first.sizes, first.notes) == ((), ("no size had right results, so that none is shown",))


@pytest.mark.parametrize(
    "prefix", ["0: ", " 3: ", "2026-01-01T00:00:00Z ", "2026-01-01 00:00:00,123 ", "\x1b[32m"]
)
def test_what_launchers_and_loggers_put_before_a_line_is_no_part_of_it(
    tmp_path: Path, prefix: str
) -> None:
    tagged = "".join(f"{prefix}{line}\n" for line in SAMPLE.splitlines())
    plain = read(tmp_path, SAMPLE)
    assert read(tmp_path, tagged) == plain
