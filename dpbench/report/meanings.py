"""What every column means: the one definition, for the page, help and documentation."""

from __future__ import annotations

from dpbench.analysis.setting_fields import SETTINGS

CLAIMED = "As the source of the numbers states it; nobody measured it here."

MEANINGS = {
    "implementation": (
        "What trains the replicas; settings that are not at their default follow in brackets."
    ),
    "backend": (
        "How gradients travel: gloo, nccl, shm, threads of one process, or none; a name other "
        "than these is the source's."
    ),
    "group_size": (
        "Number of replicas that train together; across hosts with those of each in brackets."
    ),
    "batch_size": (
        "Samples that a replica takes in a micro-step; in strong scaling, those of all replicas."
    ),
    "global_batch_size": "Samples that all replicas together take in a micro-step.",
    "learning_rate": "Learning rate of the optimizer, with the rule in brackets that scaled it.",
    **{field.key: field.meaning for field in SETTINGS},
    "images_per_second": (
        "Items per second: items consumed by all replicas in the timed window ÷ the slowest "
        "rank's wall time from the opening barrier until its device has finished."
    ),
    "duration_seconds": "Time that a fixed amount of work took, as published.",
    "speedup": (
        "Throughput of n replicas ÷ throughput of one, of the same implementation and backend, "
        "at the same batch per replica (weak scaling) or the same global batch (strong)."
    ),
    "absolute_speedup": (
        "Throughput ÷ throughput of `single`, the plain module on one device, at the same batch "
        "size."
    ),
    "efficiency": "Speedup ÷ number of replicas: 100 % is linear scaling.",
    "exposed_communication_seconds": (
        "Mean step time with gradient synchronization − without it, from two windows of equal "
        "length in the same processes: seconds of a step that overlap does not hide."
    ),
    "loss_delta_per_step": (
        "(First timed loss − last timed loss) ÷ timed steps: loss per step, of two noisy "
        "mini-batches."
    ),
    "loss_delta_per_second": (
        "(First timed loss − last timed loss) ÷ seconds of the timed window: loss per second."
    ),
    "final_loss": "Loss of the last timed step, the sample-weighted mean over ranks.",
    "loss_slope_per_step": "Theil–Sen slope of the losses over the timed steps: loss per step.",
    "loss_slope_per_second": "Theil–Sen slope of the losses × steps per second: loss per second.",
    "time_to_loss_seconds": (
        "Time from the opening of the timed window until the smoothed loss (medians of 1 % "
        "blocks, trailing mean of 5) stays at the target or below for 3 blocks."
    ),
    "loss_at_equal_samples": (
        "Smoothed loss after the largest number of samples that every configuration reached."
    ),
    "loss_at_equal_seconds": (
        "Smoothed loss after the longest time that every configuration reached."
    ),
    "noise_scale_samples": (
        "Gradient noise scale tr(Σ) ÷ |G|², in samples: the batch from which more samples a step "
        "stop paying (McCandlish et al., 2018)."
    ),
    "statistical_efficiency": (
        "Progress of a sample against one in the batch of a single replica: (noise scale + B₁) ÷ "
        "(noise scale + B), with B the samples behind a step."
    ),
    "goodput": (
        "Throughput × statistical efficiency: items per second, in items of a single replica's "
        "batch."
    ),
    "flops_per_second": (
        "Floating-point operations of forward and backward per second, all replicas together, in "
        "10⁹ per second."
    ),
    "mfu": (
        "Floating-point operations of the model per second ÷ the devices' float32 peak, where a "
        "dated table has it."
    ),
    "peak_memory_bytes": (
        "Largest memory over ranks and repetitions: allocated on the GPU during warmup and timed "
        "window, else resident on the host (whole process)."
    ),
    "peak_reserved_memory_bytes": (
        "Largest device memory over ranks that torch's allocator held, in use or not."
    ),
    "joules_per_item": (
        "Energy of the GPUs over the timed window ÷ items, in joules, from NVML's counter."
    ),
    "step_seconds_p50": "Median time of a timed step, over all steps of all repetitions.",
    "step_seconds_p95": "Time that 95 % of the timed steps did not exceed.",
    "step_seconds_p99": "Time that 99 % of the timed steps did not exceed.",
    "outliers": (
        "Timed steps more than 10 σ slower than the median (14.8 median absolute deviations), of "
        "all timed steps; they are kept."
    ),
    "step_autocorrelation": (
        "First-order autocorrelation of the timed steps, from −1 to 1; the mean over repetitions."
    ),
    "steady": (
        "Whether the timed window was in a steady state (MSER-5 and a drift test); the worst "
        "repetition."
    ),
    "rank_skew": (
        "(Slowest − fastest) ÷ median rank's mean step without synchronization, in percent; where "
        "that was not measured, with it, which hides most of the skew."
    ),
    "slowest_rank": "Rank that was slowest in most repetitions.",
    "reduced_bytes_per_step": (
        "Bytes of gradients (or parameters) that a rank hands to all-reduce in a step."
    ),
    "collectives_per_step": "Collectives that a rank takes part in during a step.",
    "repetitions": "Completed repetitions, each in fresh processes.",
    "timed_steps": "Steps of the timed window of each repetition.",
    "verified": (
        "Whether gradients were compared with those of one process in float64, or float32 above 67 "
        "million parameters and for deepspeed-0, and agreed."
    ),
    "status": "How the configuration ended, and why, if it did not simply complete.",
}
"""By the key of the column; one sentence with the unit. Where the item is called images, "item"
means an image."""
