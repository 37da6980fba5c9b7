"""How long training takes to a loss on n replicas, and what no number of replicas can undercut.

With the gradient noise scale phi, training to a loss takes S = S_min (1 + phi / B) steps of B
samples: McCandlish et al., "An empirical model of large-batch training" (2018), equation 2.11.
With steps of T(n) seconds on n replicas of b samples, TTL(n) = S_min (1 + phi / (n b)) T(n): more
replicas take phi / (n b) to 0, but never S_min T, which is the floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.propagation import product


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingToLoss:
    """What it took where it was measured, which S_min follows from."""

    target_loss: float
    samples: Estimate
    """Consumed until the loss stayed at the target."""
    batch_size: int
    """Of an optimizer step of all replicas there."""
    noise_scale: Estimate
    """phi, in samples."""

    @property
    def fewest_steps(self) -> Estimate:
        """S_min = samples ÷ (B + phi): samples ÷ B steps were taken, of which it is the part."""
        return self._steps(lambda phi: 1 / (self.batch_size + phi))

    def steps(self, batch_size: int) -> Estimate:
        """Optimizer steps of `batch_size` samples that take as far: S_min (1 + phi / B)."""
        return self._steps(lambda phi: (1 + phi / batch_size) / (self.batch_size + phi))

    def seconds(self, step_seconds: Estimate, batch_size: int) -> Estimate:
        """TTL: the steps of that batch, each as long as the group takes for it."""
        return product(self.steps(batch_size), step_seconds, unit="s")

    def floor_seconds(self, step_seconds: Estimate) -> Estimate:
        """S_min T: with steps that long, a batch of any size takes at least this."""
        return product(self.fewest_steps, step_seconds, unit="s")

    def _steps(self, per_sample: Callable[[float], float]) -> Estimate:
        """Samples times a factor that is monotonic in phi."""
        phi = self.noise_scale
        low = high = None
        if phi.interval is not None:
            low, high = sorted(map(per_sample, phi.interval))
        factor = Estimate(
            value=per_sample(phi.value),
            low=low,
            high=high,
            unit="steps/sample",
            sample_size=phi.sample_size,
            basis=phi.basis,
        )
        return product(self.samples, factor, unit="steps")
