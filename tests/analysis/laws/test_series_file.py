"""Series from files: every published efficiency, and what is wrong in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.analysis.laws.series import Series
from dpbench.analysis.laws.series_file import read_series
from dpbench.errors import StoreError
from tests.analysis.laws.series import PUBLISHED

HEADER = "model,batch_per_gpu,gpus,images_per_second\n"


def read(folder: Path, text: str) -> tuple[Series, ...]:
    path = folder / "table.csv"
    path.write_text(text)
    return read_series(path)


def efficiencies(one: Series) -> list[float]:
    base = one.points[0]
    assert base.group_size == 1
    alone = one.throughput(base).value
    return [one.throughput(p).value / alone / p.group_size for p in one.points]


def test_every_published_efficiency_is_reproduced() -> None:
    """As printed in the sources, or worked out from what they print."""
    found = {
        one.label.partition(", ")[2]: [f"{e:.3f}" for e in efficiencies(one)]
        for one in read_series(PUBLISHED / "weak_scaling.csv")
    }
    assert len(found) == 15
    p100 = "InceptionV3", "ResNet-50", "ResNet-152", "VGG16"
    at_eight = {name: found[f"{name}, synthetic, batch 64"][-1] for name in p100}
    assert at_eight == {
        "InceptionV3": f"{1131 / 142 / 8:.3f}",
        "ResNet-50": f"{1734 / 219 / 8:.3f}",
        "ResNet-152": f"{716 / 91.8 / 8:.3f}",
        "VGG16": "0.877",
    }
    assert found["AlexNet, synthetic, batch 512"][-1] == "0.746"
    v100 = "8 per node, 100 Gb/s between nodes, {}, synthetic, batch 32"
    for name, steps in {
        "ResNet-50": (0.100, 0.103, 0.103, 0.104, 0.104),
        "ResNet-101": (0.171, 0.176, 0.176, 0.179, 0.179),
        "ResNeXt-101": (0.425, 0.438, 0.439, 0.447, 0.450),
    }.items():
        assert found[v100.format(name)] == [f"{steps[0] / step:.3f}" for step in steps]


def test_the_published_dgx_rows_are_those_of_the_page() -> None:
    found = {one.label: one for one in read_series(PUBLISHED / "weak_scaling.csv")}
    resnet = found["8x P100 DGX-1, ResNet-50, synthetic, batch 64"]
    speeds = [resnet.throughput(point).value for point in resnet.points]
    assert speeds == pytest.approx([219, 422, 852, 1734])
    assert (resnet.scaling, resnet.batch_size, resnet.replicas_per_node) == ("weak", 64, None)


def test_the_forms_of_report_are_series_too() -> None:
    (times,) = read_series(PUBLISHED / "tabtune_tabicl.csv")
    assert (times.scaling, times.group_sizes) == ("weak", (1, 2, 4, 8))
    assert [p.step_seconds.value for p in times.points] == [7200, 2 * 3900, 4 * 2100, 8 * 1200]
    assert efficiencies(times) == pytest.approx([1, 0.9231, 0.8571, 0.75], abs=5e-5)
    speeds = read_series(PUBLISHED / "torch_ddp_rtx3090.csv")
    assert speeds[0].label == "torch_ddp_rtx3090, gloo, batch 32"
    assert efficiencies(speeds[0])[1] == pytest.approx(0.656, abs=5e-4)
    (typical,) = read_series(PUBLISHED / "tabtune_typical_speedups.csv")
    assert typical.relative
    assert efficiencies(typical) == pytest.approx([1, 0.9, 0.875, 0.8125])


def test_seconds_are_enough(tmp_path: Path) -> None:
    (one,) = read(tmp_path, "batch_per_gpu,gpus,seconds_per_step\n32,1,0.1\n32,2,0.2\n")
    assert one.throughput(one.points[1]).value == pytest.approx(320)
    assert one.label == "batch 32"


def test_numbers_as_other_programs_write_them(tmp_path: Path) -> None:
    (one,) = read(tmp_path, "batch_per_gpu,gpus,seconds_per_step\n32,1,.1\n32,2,+2.e-1\n")
    assert [point.step_seconds.value for point in one.points] == pytest.approx([0.1, 0.2])


def test_columns_that_matter(tmp_path: Path) -> None:
    header = "source,implementation,batch_per_gpu,gpus,gpus_per_node,images_per_second\n"
    rows = "a,dp,32,1,8,10\na,dp,32,2,8,19\nb,dp,32,1,8,10\nb,dp,32,2,8,18\n"
    first, second = read(tmp_path, header + rows)
    assert (first.label, second.label) == ("dp, batch 32, a", "dp, batch 32, b")
    assert (first.implementation, first.replicas_per_node) == ("dp", 8)


def test_strong_series_share_the_steps_of_one_replica(tmp_path: Path) -> None:
    header = "batch_per_gpu,gpus,scaling,seconds_per_step\n"
    rows = "64,1,strong,0.066\n32,2,strong,0.035\n128,1,strong,0.130\n64,2,strong,0.067\n"
    small, large = read(tmp_path, header + rows)
    assert (small.label, large.label) == ("batch 64 in all", "batch 128 in all")
    assert [lone.batch_size for lone in small.lone_steps] == [64, 128]
    assert small.items(2) == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER + "r,32,1,0\n", "line 2, column 'images_per_second': expected a number"),
        (HEADER + "r,32,1,-5\n", "got '-5'"),
        (HEADER + "r,32,1,nan\n", "got 'nan'"),
        (HEADER + "r,32,1,\n", "line 2, column 'images_per_second': expected a number"),
        (HEADER + "r,32,0,5\n", "column 'gpus': expected a whole number"),
        (HEADER + "r,32,1,5\nr,32,1,6\n", "line 3, column 'gpus': expected each group size"),
        (HEADER, "line 2: expected a row"),
        ("batch_per_gpu,images_per_second\n1,2\n", "expected a column 'gpus'"),
        ("batch_per_gpu,gpus\n1,2\n", "images_per_second, seconds_per_step"),
        (HEADER + "r,32,1\n", "expected 4 values"),
        (
            "batch_per_gpu,gpus,images_per_second,seconds_per_step\n32,1,320,0.2\n",
            "column 'seconds_per_step': expected 0.1",
        ),
        ("batch_per_gpu,gpus,scaling,images_per_second\n1,1,both,1\n", "expected weak or strong"),
        ("speedup,gpus\n-1,2\n", "column 'speedup'"),
        ("gpus,seconds_per_step\n1,0.1\n", "expected a column 'batch_per_gpu'"),
        ("GPUs,Batch_per_GPU\n1,32\n", "expected a column 'gpus', got ['GPUs'"),
        ("gpus;batch_per_gpu\n1;32\n", "expected columns separated by commas, got ';'"),
        (
            "batch_per_gpu,gpus,implementation,seconds_per_step\n32,1,torch_dp,0.1\n",
            "line 2: unknown implementation 'torch_dp'. Did you mean 'torch-dp'?",
        ),
        (
            "batch_per_gpu,gpus,scaling,seconds_per_step\n256,1,strong,1\n256,2,strong,1\n",
            "line 3, column 'batch_per_gpu': expected 128 (strong scaling: batch_per_gpu × gpus "
            "stays 256, as on line 2), got '256'",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(StoreError) as error:
        read(tmp_path, text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
