"""What predictions assume: each sentence stands once, under all whom it concerns."""

from __future__ import annotations

from dpbench.report.prediction.answer import assumption_paragraphs


def test_a_sentence_stands_once_under_all_whom_it_concerns() -> None:
    series = [
        (f"{name}, batch {batch}", ("of all", f"of {name}", f"of {name} {batch}"))
        for name in ("ddp/gloo", "ddp/shm")
        for batch in (32, 128)
    ]
    assert assumption_paragraphs(series) == [
        "Assumed\n· of all",
        "Assumed of ddp/gloo\n· of ddp/gloo",
        "Assumed of ddp/shm\n· of ddp/shm",
        "Assumed of ddp/gloo, batch 32\n· of ddp/gloo 32",
        "Assumed of ddp/gloo, batch 128\n· of ddp/gloo 128",
        "Assumed of ddp/shm, batch 32\n· of ddp/shm 32",
        "Assumed of ddp/shm, batch 128\n· of ddp/shm 128",
    ]


def test_series_that_share_a_sentence_across_backends_are_named() -> None:
    series = [
        ("ddp/gloo ×2, batch 32", ("small",)),
        ("ddp/gloo ×2, batch 128", ()),
        ("ddp/shm ×2, batch 32", ("small",)),
    ]
    assert assumption_paragraphs(series) == [
        "Assumed of ddp/gloo ×2, batch 32; ddp/shm ×2, batch 32\n· small"
    ]
