"""The trained workload, the measurement, the environment, and the commands to measure it again."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dpbench import units
from dpbench.analysis.comparisons.comparability import identifiers
from dpbench.analysis.subject import Subject
from dpbench.data.user_code import short_hash
from dpbench.records.environment import SYNTHETIC, SYNTHETIC_NOTE, Environment
from dpbench.specs import SweepSpec, WorkloadSpec
from dpbench.store import MEASURING, StoredCollectives, StoredSweep

Facts = Iterator[tuple[str, str]]
SOURCE = "Source"
"""The only fact of published numbers."""


def facts_of(subject: Subject) -> Facts:
    """(Name, value) of the workload and of the machine that most records come from."""
    if (stored := subject.sweep or subject.collectives) is None:
        yield SOURCE, f"{subject.name}: published numbers, not measured here"
        return
    if subject.sweep is not None:
        yield from _workload(subject.sweep.spec)
        yield from _hosts(subject.sweep)
    used = [name for record in stored.records for name in identifiers(record)]
    yield from _machines(stored.environments, used)


def in_short(subject: Subject) -> Iterator[str]:
    """Workload, hardware and torch version in short; empty for published numbers."""
    if (stored := subject.sweep or subject.collectives) is None:
        return
    if subject.sweep is not None:
        yield _trained(subject.sweep.spec.workloads)
    used = [name for record in stored.records for name in identifiers(record)]
    machine = most_used(stored.environments, used)
    if machine is None:
        return
    gpus = Counter(gpu.name for gpu in machine.accelerators)
    if gpus:
        yield ", ".join(f"{count} × {name}" for name, count in gpus.items())
    else:
        yield f"{machine.cpu}, {units.counted(machine.cores, 'core')}"
    yield from (f"torch {version}" for name, version in machine.versions if name == "torch")


def most_used(environments: Mapping[str, Environment], used: Sequence[str]) -> Environment | None:
    """The environment of most records; without records, the only one."""
    counts = Counter(identifier for identifier in used if identifier in environments)
    if counts:
        return environments[counts.most_common(1)[0][0]]
    return next(iter(environments.values())) if len(environments) == 1 else None


def _trained(workloads: Sequence[WorkloadSpec]) -> str:
    """Writes "mlp and mnist_cnn on digits; gpt on synthetic"."""
    datasets: dict[str, list[str]] = {}
    for one in workloads:
        datasets.setdefault(one.dataset, []).append(one.architecture)
    return "; ".join(f"{' and '.join(names)} on {data}" for data, names in datasets.items())


def _workload(spec: SweepSpec) -> Facts:
    workload = spec.workload
    steps = "" if workload.step is None else f", steps by {workload.step}"
    yield "Workload", f"{_trained(spec.workloads)}{steps}"
    hashes = [one.files_sha256 for one in spec.workloads]
    if any(hashes):
        yield (
            "Own files",
            "; ".join(f"SHA-256 {short_hash(one)}…" for one in hashes if one is not None),
        )
    rule = workload.learning_rate_rule
    scaled = "" if rule == "none" else f", scaled with the batch ({rule})"
    yield (
        "Training",
        f"{workload.optimizer}, learning rate {workload.learning_rate:g}{scaled}, "
        f"seed {workload.seed}",
    )
    batches = {"weak": "weak: the batch is per replica", "strong": "strong: the batch is global"}
    micro_steps = (
        f", {spec.accumulation_steps} micro-steps a step" if spec.accumulation_steps > 1 else ""
    )
    scalings = "; ".join(batches[scaling] for scaling in spec.values_of("scaling"))
    yield "Scaling", f"{scalings}{micro_steps}"
    steps, warmup, threads = (
        units.any_of(spec.values_of(name))
        for name in ("timed_steps", "warmup_steps", "threads_per_replica")
    )
    most = "at most " if spec.steps_grow else ""
    repetitions = f"{'at least ' if spec.precision else ''}{spec.repetitions}"
    yield (
        "Measured",
        f"{most}{steps} timed steps after {warmup} of warmup, {repetitions} repetitions, "
        "each in fresh processes",
    )
    yield "Threads", f"{threads} a replica"
    yield "Implementations", ", ".join(spec.implementations)
    yield "Backends", ", ".join(spec.backends)
    yield "Group sizes", ", ".join(map(str, spec.group_sizes))
    yield "Batch sizes", ", ".join(map(str, spec.batch_sizes))


def _hosts(sweep: StoredSweep) -> Facts:
    """Hosts of a sweep over several, with the devices that each contributed."""
    if not sweep.spec.nodes:
        return
    reached = max((record.environment_ids for record in sweep.records), key=len, default=())
    names = [
        sweep.environments[name].hostname if name in sweep.environments else name
        for name in reached
    ]
    lent = sweep.spec.nodes
    names += ["not reached"] * (len(lent) - len(names))
    listed = (
        f"{name} ({units.counted(count, 'replica')})"
        for name, count in zip(names, lent, strict=True)
    )
    yield "Hosts", f"{', '.join(listed)}; groups take them one after the other"


def _machines(environments: Mapping[str, Environment], used: Sequence[str]) -> Facts:
    machine = most_used(environments, used)
    if machine is None:
        yield "Machine", "not recorded"
        return
    yield from _machine(machine)
    others = [environments[i] for i in dict.fromkeys(used) if i in environments]
    different = ["; ".join(other.differences_from(machine)) for other in others]
    if any(different):
        yield "Other records are from", " | ".join(words for words in different if words)


def _machine(machine: Environment) -> Facts:
    if machine.launcher == SYNTHETIC:
        yield "Launcher", SYNTHETIC_NOTE
    yield "CPU", machine.cpu
    limit = f", of which the quota allows {machine.quota_cores:g}" if machine.quota_cores else ""
    where = f" ({machine.affinity})" if machine.affinity else ""
    yield "Usable cores", f"{machine.cores}{where}{limit}"
    yield "Memory", units.bytes_binary(machine.memory_bytes)
    yield from _accelerators(machine)
    known = {True: "on", False: "off"}
    if machine.governor is not None or machine.boost is not None:
        boost = "" if machine.boost is None else f"boost {known[machine.boost]}"
        yield "Frequency", ", ".join(part for part in (machine.governor, boost) if part)
    yield "System", f"{machine.system} {machine.kernel}, Python {machine.python}"
    yield "Versions", ", ".join(" ".join(pair) for pair in machine.versions)
    if machine.variables:
        yield "Variables", ", ".join("=".join(pair) for pair in machine.variables)
    yield "Commit", machine.git_commit or "not known"
    yield "Host", machine.hostname
    yield "Environment", machine.environment_id


def _accelerators(machine: Environment) -> Facts:
    names = Counter((gpu.name, gpu.memory_bytes) for gpu in machine.accelerators)
    listed = [
        f"{count} × {name}, {units.bytes_binary(memory)}" for (name, memory), count in names.items()
    ]
    yield "GPUs", "; ".join(listed) or "none"
    if any(gpu.links for gpu in machine.accelerators):
        rows = (f"{gpu.index}: {' '.join(gpu.links)}" for gpu in machine.accelerators)
        yield "Way from each GPU to each", "; ".join(rows)
    if machine.cuda:
        yield (
            "CUDA",
            machine.cuda + (f", driver {machine.gpu_driver}" if machine.gpu_driver else ""),
        )


AGAIN = "-again"
"""Suffix of a name, so that the old folder stays unchanged."""
HARMLESS = frozenset(
    {
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "CUDA_VISIBLE_DEVICES"),
        *("TORCH_DISTRIBUTED_DEBUG", "GLOO_SOCKET_IFNAME"),
        *("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"),
        *("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_"),
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LAUNCH_MODE"),
        *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
        *("NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_CROSS_NIC"),
        *("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_NTHREADS"),
        *("NCCL_NSOCKS_PERTHREAD", "NCCL_NET_GDR_LEVEL", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
        *("NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT"),
        *("NCCL_IB_QPS_PER_CONNECTION", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_HIGH_PRIORITY"),
        *("TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_USE_COMM_NONBLOCKING"),
    }
)
"""Variables that a reader may set as a folder says. Others load a library or write a file, as
LD_PRELOAD, NCCL_NET_PLUGIN and NCCL_DEBUG_FILE do, or may do so in a later version."""
NAMES_SHOWN = 5
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,63}")


def command_of(subject: Subject) -> str:
    """Commands to type, one per line; empty for published numbers.

    Variables of the environment that bear on results stand before the command, unless they could
    run something.
    """
    stored = (subject.sweep, subject.collectives)
    return "\n".join(_line(one) for one in stored if one is not None)


def _line(stored: StoredSweep | StoredCollectives) -> str:
    used = [record.environment_id for record in stored.records]
    environment = most_used(stored.environments, used)
    variables = () if environment is None else environment.variables
    if next(iter(stored.command), None) not in MEASURING:
        return "# the command is not known"
    words = ["dpbench", *_again(stored.command)]
    settings = [f"{name}={quoted(value)}" for name, value in variables if name in HARMLESS]
    return " ".join([*settings, *map(quoted, words), *_remarks(stored, variables)])


def _remarks(
    stored: StoredSweep | StoredCollectives, variables: Sequence[tuple[str, ...]]
) -> Iterator[str]:
    """Comment lines, which a shell ignores."""
    if isinstance(stored, StoredSweep) and stored.spec.nodes:
        yield f"# on each of {len(stored.spec.nodes)} nodes, with its own --node-rank"
    if left_out := [name for name, _ in variables if name not in HARMLESS]:
        named = [name for name in left_out if _NAME.fullmatch(name)][:NAMES_SHOWN]
        more = len(left_out) - len(named)
        yield f"# without {', '.join([*named, *([f'{more} more'] if more else [])])}"


def _again(words: Sequence[str]) -> Iterator[str]:
    """The command with a new folder, from the start."""
    previous = ""
    for word in words:
        if previous == "--name" or word.startswith("--name="):
            yield f"{word}{AGAIN}"
        elif word != "--resume":
            yield word
        previous = word


def quoted(word: str) -> str:
    """Quotes a word for a shell; bash's $'…' shows characters that cannot be seen."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        c
        if c.isprintable() and c not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogatepass"))
        for c in word
    )
    return f"$'{''.join(escaped)}'"
