"""Price, energy and training time of a series, and the source of each figure.

The training time to a given loss follows from the gradient noise scale phi. It takes S = S_min (1 +
phi / B) steps of B samples: McCandlish et al., "An empirical model of large-batch training" (2018),
equation 2.11. With steps of T(n) seconds on n replicas of b samples, that is S_min (1 + phi / (n
b)) T(n): more replicas take phi / (n b) to 0, but never S_min T, the floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate, inverse, product
from dpbench.analysis.losses.loss_curve import TimeToLoss
from dpbench.analysis.projection.series import Series

MILLION = 1e6
SECONDS_PER_HOUR = 3600.0
JOULES_PER_KILOWATT_HOUR = 3.6e6


def price_per_million(
    throughput: Estimate, group_size: int, *, price_per_replica_hour: float
) -> Estimate:
    """Replicas × their price ÷ throughput, in the currency of the price.

    Every replica is paid for while the others compute.
    """
    per_second = group_size * price_per_replica_hour / SECONDS_PER_HOUR
    return inverse(throughput).scaled(
        MILLION * per_second, unit=f"currency units/million {_items(throughput)}"
    )


def energy_per_million(throughput: Estimate, group_size: int, *, watts: Estimate) -> Estimate:
    """Replicas × the power of one ÷ throughput, in kilowatt-hours.

    A waiting replica is assumed to draw its average power.
    """
    unit = f"kWh/million {_items(throughput)}"
    joules = product(inverse(throughput), watts, unit="J")
    return joules.scaled(MILLION * group_size / JOULES_PER_KILOWATT_HOUR, unit=unit)


def mean_power(joules_per_item: Estimate, throughput: Estimate) -> Estimate:
    """Watts of one replica, from what it measured alone: energy per item × items per second.

    The interval is that of the energy, because both come from the same windows.
    """
    return joules_per_item.scaled(throughput.value, unit="W")


def _items(throughput: Estimate) -> str:
    return throughput.unit.removesuffix("/s")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingToLoss:
    """Measured training to a loss, from which S_min follows."""

    target_loss: float
    samples: Estimate
    """Samples consumed until the loss stayed at the target."""
    batch_size: int
    """Batch size of an optimizer step there, over all replicas."""
    noise_scale: Estimate
    """Noise scale phi, in samples."""

    @property
    def fewest_steps(self) -> Estimate:
        """S_min = samples ÷ (B + phi): samples ÷ B steps were taken, of which it is the part."""
        return self._steps(lambda phi: 1 / (self.batch_size + phi))

    def steps(self, batch_size: int) -> Estimate:
        """Number of optimizer steps of `batch_size` samples for the same progress: S_min (1 + phi /
        B)."""
        return self._steps(lambda phi: (1 + phi / batch_size) / (self.batch_size + phi))

    def seconds(self, step_seconds: Estimate, batch_size: int) -> Estimate:
        """Time to the loss (TTL): the steps at that batch size, each as long as the group takes for
        it."""
        return product(self.steps(batch_size), step_seconds, unit="s")

    def floor_seconds(self, step_seconds: Estimate) -> Estimate:
        """S_min T: with steps that long, a batch of any size takes at least this."""
        return product(self.fewest_steps, step_seconds, unit="s")

    def _steps(self, per_sample: Callable[[float], float]) -> Estimate:
        """Samples times a factor that is monotonic in phi."""
        factor = self.noise_scale.mapped(per_sample, unit="steps/sample")
        return product(self.samples, factor, unit="steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Economics:
    """Economic inputs; None if neither given nor measured."""

    price_per_replica_hour: float | None = None
    watts: Estimate | None = None
    """Power of one replica in watts."""
    noise_scale: Estimate | None = None
    """Noise scale of the gradient, in samples."""
    training: TrainingToLoss | None = None
    notes: tuple[str, ...] = ()
    """Source of each value, and reasons why a requested one is missing."""


def economics(
    series: Series,
    *,
    price_per_replica_hour: float | None = None,
    watts: float | None = None,
    noise_scale: float | None = None,
    target_loss: float | None = None,
) -> Economics:
    """Economic inputs: given values take precedence over measured ones; rows must have the time to
    `target_loss`."""
    notes: list[str] = []
    power = exact_estimate(watts, "W") or _measured_power(series, notes)
    scale = exact_estimate(noise_scale, series.item) or _measured_noise_scale(series, notes)
    training = None
    if target_loss is not None:
        training = _training(series, scale, target_loss, notes)
    if price_per_replica_hour is not None:
        notes.append(f"a replica costs {price_per_replica_hour:g} an hour, computing or waiting")
    return Economics(
        price_per_replica_hour=price_per_replica_hour,
        watts=power,
        noise_scale=scale,
        training=training,
        notes=tuple(notes),
    )


def exact_estimate(value: float | None, unit: str) -> Estimate | None:
    """A number given by the user, taken as exact."""
    if value is None:
        return None
    return Estimate(value=value, low=value, high=value, unit=unit, sample_size=1, basis="baseline")


def _measured_power(series: Series, notes: list[str]) -> Estimate | None:
    row = series.rows.get(1)
    if row is None or row.joules_per_item is None or row.throughput is None:
        return None
    power = mean_power(row.joules_per_item, row.throughput)
    notes.append(
        f"every replica draws the {power.value:.3g} W of its GPU in {row.label}, computing or "
        "waiting; hosts and network are not in it"
    )
    return power


def _measured_noise_scale(series: Series, notes: list[str]) -> Estimate | None:
    row = _largest(series, lambda row: row.noise_scale is not None)
    if row is None or row.noise_scale is None:
        return None
    notes.append(f"the gradient noise scale is that of {row.label}, and stays so in training")
    return row.noise_scale


def _training(
    series: Series, scale: Estimate | None, target_loss: float, notes: list[str]
) -> TrainingToLoss | None:
    missing = f"no time to loss {target_loss:g}"
    if scale is None:
        notes.append(
            f"{missing}: how many steps larger batches save follows from the gradient noise scale; "
            "give --noise-scale-samples, or measure it with dpbench sweep --noise-scale"
        )
        return None
    first = _first_loss(series)
    if first is not None and target_loss >= first:
        notes.append(
            f"{missing}: it was reached before the first step was timed (windows begin at "
            f"{first:.4g}); give a lower loss"
        )
        return None
    row = _largest(series, _reached)
    if row is None or row.time_to_loss is None or row.time_to_loss.samples is None:
        notes.append(
            f"{missing}: no group of {series.label} stayed there in every repetition "
            f"({_closest(series)}); measure more --steps, or give a higher loss"
        )
        return None
    assert row.global_batch_size is not None
    samples = row.time_to_loss.samples
    if samples.interval is None:
        samples = replace(samples, low=samples.value, high=samples.value)
        notes.append(
            f"how many {series.item} other seeds take to loss {target_loss:g} was not measured; "
            "the interval of the time leaves it out"
        )
    training = TrainingToLoss(
        target_loss=target_loss,
        samples=samples,
        batch_size=row.global_batch_size * series.model.accumulation_steps,
        noise_scale=scale,
    )
    notes.append(
        f"time to loss {target_loss:g}: {row.label} took {training.samples.value:,.0f} "
        f"{series.item}; S_min (1 + phi / B) steps of B {series.item} take as far, with the noise "
        f"scale phi = {scale.value:,.0f} and so S_min = {training.fewest_steps.value:,.0f} "
        "(McCandlish et al. 2018), at a learning rate that suits each B"
    )
    return training


def _largest(
    series: Series, fits: Callable[[ConfigurationSummary], bool]
) -> ConfigurationSummary | None:
    return next((row for _, row in sorted(series.rows.items(), reverse=True) if fits(row)), None)


def _reached(row: ConfigurationSummary) -> bool:
    return row.time_to_loss is not None and row.time_to_loss.samples is not None


def _first_loss(series: Series) -> float | None:
    """The lowest loss at the start of a window."""
    return min((one.first_loss for one in _times_to_loss(series)), default=None)


def _closest(series: Series) -> str:
    """Length of the windows that did not reach the loss."""
    if not (found := _times_to_loss(series)):
        return "no losses were recorded"
    return f"the longest window took {units.seconds(max(one.longest_seconds for one in found))}"


def _times_to_loss(series: Series) -> list[TimeToLoss]:
    return [row.time_to_loss for row in series.rows.values() if row.time_to_loss is not None]
