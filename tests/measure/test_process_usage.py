"""Counters of this process: they rise with what it does."""

from __future__ import annotations

import mmap

from dpbench.measure.process_usage import Usage, total, usage

PAGES = 500


def test_each_page_that_is_touched_for_the_first_time_is_a_page_fault() -> None:
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
        if hasattr(memory, "madvise"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        before = usage()
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1
        taken = usage() - before
    assert PAGES <= taken.page_faults < 2 * PAGES


def test_processor_time_is_that_of_all_work() -> None:
    before = usage()
    while (usage() - before).cpu_seconds < 0.02:
        sum(range(10_000))
    assert (usage() - before).cpu_seconds >= 0.02


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    one, other = Usage(1.0, 10), Usage(0.5, 5)
    assert total([one, other]) == Usage(1.5, 15)
    assert total([one, None]) is None
