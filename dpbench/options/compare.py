"""The options of `dpbench compare`."""

from __future__ import annotations

from pydantic import model_validator

from dpbench.options.bridge import Options, option
from dpbench.options.shared import json_option, refuse_if
from dpbench.options.types import CommaList, Percent


class CompareOptions(Options):
    """The two sides of a comparison, what is compared, and how it is shown."""

    baseline: str | None = option(
        None,
        "Baseline: a results folder, or a part of one as DIR:key=value,key=value.",
        "A",
        usual="the second-latest in results/",
        argument=True,
    )
    candidate: str | None = option(
        None,
        "Candidate, written in the same way.",
        "B",
        usual="the latest in results/",
        argument=True,
    )
    metric: CommaList[str] = option(
        ("images_per_second",), "Metrics, e.g. images_per_second,peak_memory_bytes.", "A,B,C"
    )
    within: Percent = option(0.03, "Difference that counts as the same.", "X%", usual="3%")
    force: bool = option(False, "Compare even if the environments differ.")
    as_json: bool = json_option()

    @model_validator(mode="after")
    def _names_two_sides(self) -> CompareOptions:
        refuse_if(
            self.baseline is not None and self.candidate is None,
            f"compare {self.baseline}: name the candidate, too: dpbench compare A B",
        )
        return self
