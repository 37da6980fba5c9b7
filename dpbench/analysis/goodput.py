"""What throughput is worth in training: samples of large batches carry less progress each.

With the gradient noise scale phi, training to a given loss takes S = S_min (1 + phi / B) steps of
B samples: McCandlish et al., "An empirical model of large-batch training" (2018), equation 2.11.
So a sample of a batch of B is worth (phi + B0) / (phi + B) samples of a batch of B0, and
goodput = throughput times that: Qiao et al., "Pollux" (OSDI 2021). phi itself is the critical
batch: twice the fewest steps, twice the fewest samples.
"""

from __future__ import annotations

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.propagation import product


def statistical_efficiency(
    noise_scale: Estimate, batch_size: float, *, base_batch_size: float
) -> Estimate:
    """Progress of a sample at a batch size, in samples of the base batch size.

    Batch sizes are those of one optimizer step, all replicas and micro-steps together.
    """
    value = _efficiency(noise_scale.value, batch_size, base_batch_size)
    low = high = None
    if noise_scale.interval is not None:
        # Monotonic in phi: rising if the batch is larger than the base, else falling.
        low, high = sorted(
            _efficiency(end, batch_size, base_batch_size) for end in noise_scale.interval
        )
    return Estimate(
        value=value,
        low=low,
        high=high,
        unit="×",
        sample_size=noise_scale.sample_size,
        basis=noise_scale.basis,
    )


def goodput(throughput: Estimate, efficiency: Estimate) -> Estimate:
    """Throughput times statistical efficiency, in items of the base batch size per second."""
    return product(throughput, efficiency, unit=throughput.unit)


def _efficiency(noise_scale: float, batch_size: float, base_batch_size: float) -> float:
    return (noise_scale + base_batch_size) / (noise_scale + batch_size)
