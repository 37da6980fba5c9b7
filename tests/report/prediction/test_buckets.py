"""Bucket advice as text and as JSON."""

from __future__ import annotations

import json
import re

from dpbench.report.prediction.buckets import answer, cap_to_take
from tests.analysis.projection.test_bucket_advice import advise, sweep


def test_the_text_holds_the_profile_the_caps_and_the_command() -> None:
    text = answer([advise(sweep())], ["a remark"]).text
    assert text.startswith(
        "ddp/gloo ×2, batch 32, on gloo as measured (interpolated)\n"
        "8 gradients, 8 MiB; ddp/gloo ×1, batch 32, 6 steps\n"
    )
    assert ", the first gradient ready at 3.43 ms\n" in text
    assert "\nof the bytes ready: 25 % at 4.12 ms, 50 % at 5.49 ms, " in text
    assert max(map(len, text.splitlines())) <= 100
    present = next(line for line in text.splitlines() if line.startswith("default: 1,"))
    assert present.split()[-2:] == ["present", "3"]
    assert re.search(
        r"→ 1 MiB saves 9\.8 \(6\.6–9\.9\) % of a step: dpbench sweep … --bucket-cap-mb 1, or\n"
        r"  DistributedDataParallel\(module, bucket_cap_mb=1\)",
        text,
    )
    assert "measured 20.000 ± 0 ms a step (n = 3), simulated" in text
    assert "· a remark\n\nAssumed\n· " in text


def test_one_bucket_is_recommended_as_mebibytes_that_hold_everything() -> None:
    advice = advise(sweep(), latency=20e-3)
    assert cap_to_take(advice) == 10.0
    assert "--bucket-cap-mb 10, or" in answer([advice]).text


def test_a_gain_within_the_noise_is_no_recommendation() -> None:
    advice = advise(sweep(), latency=1e-9, bandwidth=1e15)
    assert cap_to_take(advice) is None
    text = answer([advice]).text
    assert "no difference worth a change" in text or "no cap is better" in text


def test_a_model_that_fits_in_every_bucket_has_nothing_to_choose() -> None:
    advice = advise(sweep(gradient_bytes=(1000,) * 8))
    assert "→ no cap makes other buckets" in answer([advice]).text


def test_a_single_repetition_is_said_to_be_one() -> None:
    assert (
        "of a single repetition the interval is over its traced steps"
        in answer([advise(sweep(1))]).text
    )


def test_json_holds_the_same_numbers() -> None:
    advice = advise(sweep())
    found = json.loads(answer([advice], ["a remark"]).json)
    [one] = found["configurations"]
    assert (one["implementation"], one["group_size"], one["bucket_cap_mb"]) == ("ddp", 2, 1.0)
    assert one["present"]["bucket_cap_mb"] is None
    assert one["present"]["bucket_bytes"] == [2**20, 7 * 2**20]
    assert one["others"][0]["share_saved"]["sample_size"] == 3
    assert len(one["trace"]["ready_seconds"]) == 8
    assert found["notes"] == ["a remark"]
