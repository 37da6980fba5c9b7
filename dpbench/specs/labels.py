"""Names of trials and rows, which tell the settings that distinguish them from each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dpbench.specs.axes import AXES
from dpbench.specs.shares import on_hosts
from dpbench.specs.traits import OWN_BACKEND
from dpbench.specs.trial import DEFAULTS, TrialSpec

ONLY_IF_SEVERAL = tuple(
    name for name, axis in AXES.items() if name not in DEFAULTS or axis.changes_work
)
"""Settings that names tell only where trials have several values of them; of all others, names
tell each value that is not the default."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of trials, among others that have `several` values of these settings."""

    several: tuple[str, ...] = ()

    @classmethod
    def among(cls, trials: Iterable[TrialSpec]) -> Labels:
        """Names that distinguish these trials."""
        every = [*trials]
        return cls(
            tuple(
                name
                for name in ONLY_IF_SEVERAL
                if len({trial.setting(name) for trial in every}) > 1
            )
        )

    def work(self, trial: TrialSpec) -> str:
        """The settings that make a trial's work another one than that of others, in words: "gpt,
        strong"; "" if all have the same work."""
        work = (name for name, axis in AXES.items() if axis.changes_work and name in self.several)
        return ", ".join(AXES[name].text(trial.setting(name)) for name in work)

    @property
    def within_work(self) -> Labels:
        """Names without what `work` says."""
        return Labels(tuple(name for name in self.several if not AXES[name].changes_work))

    def implementation(self, trial: TrialSpec) -> str:
        """The implementation with the settings that it shows: "ddp(bf16, 5 MiB)", "local-sgd(4)"
        for the steps between two averages."""
        words = [
            setting.shown(value)
            for name, setting in AXES.items()
            for value in (trial.setting(name),)
            if name in self.several
            or not (setting.changes_work or value == DEFAULTS.get(name, value))
        ]
        shown = ", ".join(filter(None, words))
        return f"{trial.implementation}({shown})" if shown else trial.implementation

    def series(self, trial: TrialSpec) -> str:
        """Name of a scaling curve: "ddp/gloo"."""
        return series_name(self.implementation(trial), trial.backend)

    def configuration(self, trial: TrialSpec) -> str:
        """Name of the configuration: "ddp/gloo ×2, batch 32", and "ddp/gloo ×2 (1+1 hosts), batch
        32" across hosts."""
        batch = f", batch {trial.batch_size}" if trial.batch_size else ""
        return f"{self.series(trial)} ×{trial.group_size}{on_hosts(trial.nodes)}{batch}"


def plain_label(trial: TrialSpec) -> str:
    """Name of a trial's configuration where no others are listed."""
    return Labels().configuration(trial)


def series_name(implementation: str, backend: str | None) -> str:
    """Name of a scaling curve; a backend that adds no information is left out."""
    no_information = (None, "none", "threads", OWN_BACKEND)
    return implementation if backend in no_information else f"{implementation}/{backend}"
