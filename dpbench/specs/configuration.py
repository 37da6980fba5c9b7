"""A configuration, of which each repetition is a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Self

from dpbench.messages import as_typed
from dpbench.specs.axes import PLACEHOLDER
from dpbench.specs.parallel import ParallelSpec
from dpbench.specs.traits import OPTIONAL_SETTINGS, SINGLE
from dpbench.specs.workload import WORKLOAD_FIELDS, WorkloadSpec

MAX_FILLING_STEPS = 1000
"""Most steps of a window that fills a time: more would only make records larger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration(ParallelSpec):
    """The settings that several trials repeat, and that a row of results shows."""

    warmup: int
    steps: int
    """Steps of the timed window; the fewest if it fills a time."""
    is_instrumented: bool = True
    """Whether more than its speed is measured: steps without gradient synchronization, the time of
    each phase, and when each gradient is ready; see `has_unsynced_window`, `traces_gradients`."""
    prefetch: int | None = None
    """Steps whose samples a thread loads ahead from host memory; 0: each step loads its own; None:
    all samples lie on the device."""
    data_workers: int | None = None
    """Processes of each rank that take the samples one by one, as torch's DataLoader has them; None
    leaves their number to the script, or is none."""
    window_seconds: float | None = None
    """Seconds that the timed window fills. It then has `steps` or more, up to
    MAX_FILLING_STEPS, as the warm-up steps suggest; the record says how many."""

    def setting(self, field: str) -> Any:
        """The value of a field of the workload or of the configuration; None where a script decides
        it: the row sets nothing else than the default, and no placeholder stands for it."""
        value = getattr(self.workload if field in WORKLOAD_FIELDS else self, field)
        script = self.workload.script
        placed = {name for word in script for name in PLACEHOLDER.findall(word)}
        is_set = field in placed or value != DEFAULTS.get(field)
        return value if is_set or not script else None

    @classmethod
    def of(cls, workload: WorkloadSpec, settings: Mapping[str, Any]) -> Self:
        """The configuration with these values of its fields, or of those of its workload."""
        of_workload = {name: settings[name] for name in settings.keys() & WORKLOAD_FIELDS}
        own = {name: settings[name] for name in settings.keys() - WORKLOAD_FIELDS}
        return cls(workload=replace(workload, **of_workload), **own)

    def filling_steps(self, step_seconds: float) -> int:
        """The steps of its timed window, if that fills a time and a step takes so long."""
        wanted = math.ceil((self.window_seconds or 0.0) / step_seconds)
        return max(self.steps, min(wanted, MAX_FILLING_STEPS))

    @property
    def script_command(self) -> tuple[str, ...]:
        """The script and its arguments, with the values of this configuration for placeholders;
        () without one."""
        return tuple(
            PLACEHOLDER.sub(lambda found: as_typed(self.setting(found[1])), word)
            for word in self.workload.script
        )

    @property
    def has_unsynced_window(self) -> bool:
        """Whether steps are also timed without gradient synchronization: if the implementation can
        run without it, and there is another replica."""
        traits = self.traits
        # In float16 ranks with gradients of their own agree in each step whether to skip it.
        agrees = traits.has_local_state and self.workload.dtype == "f16"
        can_run_unsynced = traits.can_run_unsynced and not agrees
        return self.is_instrumented and can_run_unsynced and self.group_size > 1

    @property
    def traces_gradients(self) -> bool:
        """Whether it notes when gradients are ready: where those of one replica meet no others."""
        alone = self.group_size == 1 and not self.traits.one_process
        return alone and self.is_instrumented

    @property
    def node_count(self) -> int:
        return max(1, len(self.replicas_by_node))

    def device_name(self, rank: int) -> str:
        """The device of a replica: "cuda:1", and "cuda:1 on node 0" where there are several."""
        node, device = self.node_devices[rank]
        return f"{device} on node {node}" if self.node_count > 1 else device

    @property
    def of_one_replica(self) -> Self:
        """This configuration at group size 1, on the first device."""
        return replace(self, group_size=1, devices=self.devices[:1], replicas_by_node=())

    @property
    def single(self) -> Self:
        """The same work by the plain module on the first device, SINGLE."""
        alone = replace(self.of_one_replica, implementation=SINGLE, backend="none")
        return alone.normalized

    @property
    def normalized(self) -> Self:
        """This configuration with the defaults of settings that have no effect: those that its
        implementation lacks, and the number of workers without anything to load."""
        without_effect = OPTIONAL_SETTINGS - {*self.traits.settings}
        if not self.prefetch and not self.workload.script:
            without_effect.add("data_workers")
        return replace(self, **{name: DEFAULTS[name] for name in without_effect})


DEFAULTS = {
    field.name: field.default
    for spec in (WorkloadSpec, Configuration)
    for field in fields(spec)
    if field.default is not MISSING
}
"""The stored defaults. They decide the trial ids of existing results, so they never change.
Settings without one are in every trial."""
