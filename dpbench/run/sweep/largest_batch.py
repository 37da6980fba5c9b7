"""`--batch-sizes max`: the largest batch of a replica that fits, found before a sweep begins.

It is found by trying, or predicted from small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import monotonic

from dpbench import units
from dpbench.data.registry import prepare
from dpbench.errors import UsageError
from dpbench.launch.launcher import Launcher, TrialOutcome
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.records.trial import Status
from dpbench.run.shared_options import LARGEST_BATCH
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.grid import configurations, rows
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs import SweepSpec, TrialSpec, series_name
from dpbench.temporary import temporary_folder

OPTION = f"--batch-sizes {LARGEST_BATCH}"
SHARE_OF_MEMORY = 0.5
"""The share of the available memory that all replicas of the largest group may take on the CPU:
what is beyond the prediction, and the other programs, have the rest."""
SHARE_OF_TIME = 0.5
"""The share of --time-limit that the steps of a trial may take: the start, the proof, what is
measured beside and larger groups have the rest."""
TRY_SECONDS = 60.0
SEARCH_SECONDS = 180.0
LARGEST_SAMPLES = 2**20
TRIED_STEPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Small trials of one row of the sweep, at one batch size after the other."""

    launcher: Launcher
    trial: TrialSpec
    most: int
    deadline_seconds: float
    """On the monotonic clock."""
    step_seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of a step at each batch size that was tried and fits, on the slowest rank."""

    def is_over(self) -> bool:
        if late := monotonic() > self.deadline_seconds:
            say(f"{OPTION}: the search ends after {units.seconds(SEARCH_SECONDS)}")
        return late

    def fits(self, batch_size: int) -> bool:
        """Whether it does, by trying; raises UsageError for a failure that is not of memory."""
        outcome = self._run(batch_size)
        fits = outcome.status is Status.COMPLETED
        late = outcome.status is Status.TIMED_OUT
        if not (fits or late or outcome.status is Status.OUT_OF_MEMORY):
            raise _failed(batch_size, outcome)
        words = "fits" if fits else f"takes above {TRY_SECONDS:g} s" if late else "does not fit"
        say(f"{OPTION}: {batch_size} {words}")
        return fits

    def peak_bytes(self, batch_size: int) -> int:
        """Peak memory of a process; raises UsageError for a trial that does not complete."""
        outcome = self._run(batch_size)
        peaks = [rank.peak_host_memory_bytes or 0 for rank in outcome.ranks]
        if outcome.status is not Status.COMPLETED or not any(peaks):
            raise _failed(batch_size, outcome)
        say(f"{OPTION}: {batch_size} takes {units.bytes_binary(max(peaks))}")
        return max(peaks)

    def _run(self, batch_size: int) -> TrialOutcome:
        outcome = self.launcher.run(replace(self.trial, batch_size=batch_size), TRY_SECONDS)
        if outcome.status is Status.COMPLETED and outcome.ranks:
            slowest = max(fmean(rank.timed.step_seconds) for rank in outcome.ranks)
            self.step_seconds[batch_size] = slowest
        return outcome


def with_largest(
    parsed: ParsedOptions, machine: Machine, *, data_dir: Path | None, earlier: SweepSpec | None
) -> ParsedOptions:
    """The options with that batch as a plain number; of a sweep to resume, with the batches it has.

    Raises UsageError if no batch fits or it cannot be told.
    """
    if not parsed.largest_batch:
        return parsed
    if earlier is not None:
        count = len(parsed.batch_sizes)
        alike = earlier.batch_sizes[:count] == parsed.batch_sizes
        sizes = earlier.batch_sizes if alike else parsed.batch_sizes
        return replace(parsed, batch_sizes=sizes, largest_batch=False)
    if len(parsed.options.arch) > 1:
        raise UsageError(
            f"{OPTION} with --arch {','.join(parsed.options.arch)}: the largest batch of one "
            "architecture is not that of another; expected a number, or a sweep for each"
        )
    if "strong" in parsed.axes.values["scaling"]:
        raise UsageError(
            f"{OPTION} with --scaling strong: the batch is that of the whole group there; expected "
            "a number"
        )
    one = replace(parsed, batch_sizes=(1,), largest_batch=False, exclude=())
    spec, _ = build_sweep_spec(one, machine)
    found = _find(spec, _row(spec, parsed.options.implementations[0]), machine, data_dir)
    every = tuple(dict.fromkeys((*parsed.batch_sizes, found)))
    return replace(parsed, batch_sizes=every, largest_batch=False)


def as_typed(command: Sequence[str], batch_sizes: Sequence[int]) -> list[str]:
    """The command with the batch that was found."""
    text, options = ",".join(map(str, batch_sizes)), ("--batch-sizes", "--batch-size")
    words = []
    for before, word in zip(("", *command), command, strict=False):
        name, equals, _ = word.partition("=")
        if before in options:
            words.append(text)
        else:
            words.append(f"{name}={text}" if equals and name in options else word)
    return words


def _row(spec: SweepSpec, implementation: str) -> TrialSpec:
    """The row whose memory is looked at, with as few steps as there can be: at group size 1, which
    the sweep itself need not have."""
    alone = configurations(replace(spec, group_sizes=(1,)))
    row = next(row for row in alone if row.implementation == implementation)
    return replace(
        row,
        warmup_steps=1,
        timed_steps=TRIED_STEPS * row.sync_every,
        precision=None,
        phase_steps=0,
        trace_steps=0,
        gradient_steps=0,
        compared=(),
    )


def _find(spec: SweepSpec, row: TrialSpec, machine: Machine, data_dir: Path | None) -> int:
    from dpbench.launch.agent import ElasticLauncher

    workload, largest_group = spec.workload, max(one.group_size for one in rows(spec))
    with temporary_folder() as scratch:
        data = prepare(
            workload.dataset,
            data_dir=data_dir,
            cache=scratch,
            architecture=workload.architecture,
        )
        most = LARGEST_SAMPLES if data.samples is None else max(1, data.samples // largest_group)
        launcher = ElasticLauncher(machine, data.folder, logs=scratch / "logs", traces=scratch)
        if reason := launcher.unusable_reason(row):
            raise UsageError(f"{OPTION}: {row.label} cannot be tried: {reason}")
        search = Search(
            launcher=launcher,
            trial=row,
            most=most,
            deadline_seconds=monotonic() + SEARCH_SECONDS,
        )
        found, how = _largest(search, largest_group)
    limit = "" if found < most else f"; {_why_no_more(workload.dataset, most, largest_group)}"
    series = series_name(row.implementation_label, row.backend)
    say(f"{OPTION}: {found}, {how} of {series} at group size 1{limit}")
    return _within_time(found, spec, search)


def _within_time(found: int, spec: SweepSpec, search: Search) -> int:
    """That batch, or the one whose trials end in time; raises UsageError if there is none."""
    steps = max(row.warmup_steps + row.timed_steps for row in rows(spec))
    longest = SHARE_OF_TIME * spec.time_limit_seconds / steps
    fits = within_time(found, search.step_seconds, longest)
    if fits == found:
        return found
    words = (
        f"{units.counted(steps, 'step')} within {units.percent(SHARE_OF_TIME)} of --time-limit "
        f"{units.seconds(spec.time_limit_seconds)}"
    )
    if fits < min(search.step_seconds):
        raise UsageError(
            f"{OPTION}: not even the smallest batch takes {words}; expected a longer --time-limit, "
            "fewer --steps, or a number"
        )
    say(f"{OPTION}: {fits} instead, predicted from the time of a step to take {words}")
    return fits


def _largest(search: Search, largest_group: int) -> tuple[int, str]:
    """The batch, and how it was found."""
    if search.trial.devices[0] != "cpu":
        found = by_trying(search.fits, search.most, search.is_over)
        if found is None:
            raise UsageError(f"{OPTION}: not even the smallest batch fits; expected a number")
        return found, "by trying, the largest"
    available = available_memory_bytes()
    if available is None:
        raise UsageError(f"{OPTION}: this system does not tell its free memory; expected a number")
    budget = SHARE_OF_MEMORY * available / largest_group
    words = (
        f"{units.percent(SHARE_OF_MEMORY)} of the {units.bytes_binary(available)} that are "
        f"available, for {units.counted(largest_group, 'replica')}"
    )
    found = by_predicting(search.peak_bytes, budget, search.most, search.is_over)
    if found is None:
        raise UsageError(f"{OPTION}: not even the smallest batch is within {words}")
    return found, f"predicted to stay within {words}, from the memory"


def _why_no_more(dataset: str, most: int, largest_group: int) -> str:
    if most == LARGEST_SAMPLES:
        return f"no more than {LARGEST_SAMPLES:,} is looked at"
    return f"{dataset} has no more for {units.counted(largest_group, 'replica')}"


def _failed(batch_size: int, outcome: TrialOutcome) -> UsageError:
    return UsageError(f"{OPTION}: batch {batch_size} {outcome.status.value}: {outcome.reason}")


FIRST_BATCH = 2
"""First batch to try: a batch norm cannot train on one sample."""
GROWTH = 4
"""Factor between two small batches whose memory is compared."""
RESOLUTION = 16
"""Bisection ends when the interval is 1/16 of the batch that fits."""
CLEAR_BYTES = 256 * 2**20
"""Least difference in memory of two compared batches: far more than equal runs differ by."""
NOISE_BYTES = 16 * 2**20
"""Smallest growth that is assumed, so that noise predicts no batch that is too large."""


def by_trying(fits: Callable[[int], bool], most: int, is_over: Callable[[], bool]) -> int | None:
    """Double until a batch does not fit, then bisect; None if not even the first fits.

    The result is at most `most`. Once `is_over`, it is the largest that fitted so far.
    """
    if not fits(first := min(FIRST_BATCH, most)):
        return None
    low, high = first, most + 1
    while low < most and not is_over():
        doubling = 2 * low < high and high == most + 1
        if not doubling and high - low <= max(1, low // RESOLUTION):
            break
        middle = 2 * low if doubling else (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def by_predicting(
    measure: Callable[[int], int], budget_bytes: float, most: int, is_over: Callable[[], bool]
) -> int | None:
    """Measure the peak memory of ever larger batches until it grows clearly, then extrapolate
    linearly.

    `measure` returns the bytes of a batch; a batch is not measured if the ones before predict that
    it exceeds the budget. None if not even the first fits.
    """
    size = min(FIRST_BATCH, most)
    peak = measure(size)
    if peak > budget_bytes:
        return None
    slope: float = NOISE_BYTES
    while size < most and not is_over():
        following = min(GROWTH * size, most)
        if peak + slope * (following - size) > budget_bytes:
            break
        before, peak = peak, measure(following)
        slope = max(peak - before, NOISE_BYTES) / (following - size)
        size = following
        if peak - before >= CLEAR_BYTES:
            break
    if peak > budget_bytes:
        return None
    return min(most, size + int((budget_bytes - peak) / slope))


def within_time(batch_size: int, step_seconds: Mapping[int, float], longest_seconds: float) -> int:
    """The batch, or the one whose step takes `longest_seconds`: extrapolated from the largest
    measured batch with constant time per sample. 0 if not even one sample is allowed."""
    measured, seconds = max(step_seconds.items())
    return min(batch_size, int(measured * longest_seconds / seconds))


def available_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may still take without swapping, within its control group's limit;
    None if the system does not report it, as outside of Linux."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "MemAvailable" not in fields:
        return None
    available = int(fields["MemAvailable"].split()[0]) * 1024
    group = root / "sys/fs/cgroup"
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return available
    return max(0, min(available, limit - used))
