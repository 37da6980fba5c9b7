"""Lists of values make rows, and rules leave rows out."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.run.sweep.grid import rows
from dpbench.run.sweep.rules import Axes
from dpbench.specs import SweepSpec, Variant
from dpbench.specs.settings import AUTO
from dpbench.store import load_header
from tests.builders import trial_spec
from tests.cli.synthetic import dpbench
from tests.cli.typed import axes_of

pytestmark = pytest.mark.usefixtures("synthetic")


def parsed(implementations: tuple[str, ...] = ("ddp",), **typed: str) -> Axes:
    return axes_of(implementations, **typed)


def test_nothing_typed_is_the_defaults_and_no_variant() -> None:
    axes = parsed()
    assert axes.variants() == ()
    assert axes.base("dtype") == "f32"
    assert axes.base("accumulation_steps") == 1


def test_a_single_value_is_of_the_sweep_itself() -> None:
    axes = parsed(dtypes="bf16", bucket_cap_mb="5")
    assert axes.variants() == ()
    assert (axes.base("dtype"), axes.base("bucket_cap_mb")) == ("bf16", 5.0)


def test_several_values_are_combined() -> None:
    axes = parsed(dtypes="float32,bfloat16", compile="none,default")
    assert axes.variants() == (
        Variant(dtype="f32", compile="none"),
        Variant(dtype="f32", compile="default"),
        Variant(dtype="bf16", compile="none"),
        Variant(dtype="bf16", compile="default"),
    )


def test_what_has_no_default_is_left_to_the_machine() -> None:
    axes = parsed(steps="4,8", warmup="1,3")
    assert axes.variants() == (
        Variant(warmup_steps=1, timed_steps=4),
        Variant(warmup_steps=1, timed_steps=8),
        Variant(warmup_steps=3, timed_steps=4),
        Variant(warmup_steps=3, timed_steps=8),
    )
    assert axes.values["threads_per_replica"] == (AUTO,)


def test_auto_among_bucket_caps_is_the_implementations_own() -> None:
    axes = parsed(bucket_cap_mb="1,auto")
    assert axes.variants() == (Variant(bucket_cap_mb=1.0), Variant())
    assert axes.base("bucket_cap_mb") is None


def test_resident_among_steps_ahead_is_what_the_sweep_keeps_to() -> None:
    axes = parsed(prefetch="resident,0,2", data_workers="0,1")
    assert (axes.base("prefetch"), axes.base("data_workers")) == (None, 0)
    assert axes.variants()[:3] == (
        Variant(data_workers=0),
        Variant(data_workers=1),
        Variant(prefetch=0, data_workers=0),
    )
    assert parsed(prefetch="2").base("prefetch") == 2


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"prefetch": "residnet"}, "--prefetch"),
        ({"prefetch": "-1"}, "--prefetch"),
        ({"data_workers": "1000"}, "expected at most 256"),
        ({"dtypes": "f23"}, "--dtypes"),
        ({"compile": "defualt"}, "Did you mean 'default'"),
        ({"channels_last": "maybe"}, "--channels-last"),
        ({"accumulate": "0"}, "--accumulate"),
        ({"bucket_cap_mb": "1e7"}, "at most"),
        ({"optimizer": "sdg"}, "Did you mean 'sgd'"),
        ({"comm_hook": "fp8"}, "--comm-hook"),
    ],
)
def test_an_odd_value_is_named_with_its_option(typed: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parsed(**typed)


def test_a_setting_that_no_implementation_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--sync-every 4: it is an option of local-sgd"):
        parsed(sync_every="4")
    with pytest.raises(UsageError, match=r"--comm-hook bf16: it is an option of ddp, "):
        parsed(("dp",), comm_hook="bf16")


def test_both_kinds_of_scaling_make_rows_whose_names_say_which(tmp_path: Path) -> None:
    words = ("--arch", "mlp", "--scaling", "weak,strong", "--backends", "shm", "--repetitions", 1)
    typed = (*words, "--implementations", "ddp", "--batch-sizes", 8, "--gpus", 2, "--oversubscribe")
    folder = ("--name", "both", "--results-dir", tmp_path)
    assert dpbench("sweep", *typed, *folder, "--exclude", "scaling=weak group_size=2") == 0
    spec, _ = load_header(tmp_path / "both")
    assert spec.compared == ("scaling",)
    assert [(row.label, row.global_batch_size) for row in rows(spec)] == [
        ("single(weak) ×1, batch 8", 8),
        ("single(strong) ×1, batch 8", 8),
        ("ddp(weak)/shm ×1, batch 8", 8),
        ("ddp(strong)/shm ×1, batch 8", 8),
        ("ddp(strong)/shm ×2, batch 8", 8),
    ]


def test_one_kind_of_scaling_is_in_no_name() -> None:
    assert trial_spec(scaling="strong").label == "ddp/gloo ×2, batch 4"
    assert trial_spec(scaling="strong").work == ""


def test_a_list_with_strong_scaling_takes_a_sample_for_every_replica(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--arch", "mlp", "--gpus", 2, "--oversubscribe", "--scaling", "weak,strong")
    assert dpbench("sweep", "--dry-run", *words, "--batch-sizes", 1) == 2
    assert "with --scaling strong 1 is the global batch" in capsys.readouterr().err


ARCHS = ("--arch", "mlp:width=8,layers=2,gpt:layers=1,width=32")
WIDE = "mlp:width=8,layers=2"
NARROW = "gpt:layers=1,width=32"
SMALL = ("--backends", "shm", "--repetitions", 1, "--batch-sizes", 8, "--gpus", 2)
OF_DDP = (*SMALL, "--oversubscribe", "--implementations", "ddp", "--no-charts", "--quiet")


def planned(folder: Path, *words: object) -> SweepSpec:
    assert dpbench("sweep", *OF_DDP, *words, "--name", "a", "--results-dir", folder) == 0
    return load_header(folder / "a")[0]


def test_each_architecture_has_rows_with_its_own_data_and_its_own_baseline(tmp_path: Path) -> None:
    spec = planned(tmp_path, *ARCHS, "--group-sizes", 2)
    assert spec.compared == ("architecture",)
    found = rows(spec)
    assert [row.label for row in found] == [
        f"single({WIDE}) ×1, batch 8",
        f"single({NARROW}) ×1, batch 8",
        f"ddp({WIDE})/shm ×2, batch 8",
        f"ddp({NARROW})/shm ×2, batch 8",
    ]
    assert [row.workload.dataset for row in found] == ["digits", "synthetic"] * 2
    assert [row.baseline for row in found[2:]] == [*found[:2]]
    assert [row.work for row in found] == [WIDE, NARROW] * 2
    assert {row.label_within_work for row in found} == {"single", "ddp"}


def test_one_architecture_is_in_no_name(tmp_path: Path) -> None:
    spec = planned(tmp_path, "--arch", WIDE, "--group-sizes", 1)
    assert (spec.compared, spec.variants, spec.more_workloads) == ((), (), ())


def test_rules_name_an_architecture_with_its_options(tmp_path: Path) -> None:
    rule = f"architecture={WIDE} group_size=2, architecture={NARROW} group_size=1"
    spec = planned(tmp_path, *ARCHS, "--group-sizes", "1,2", "--exclude", rule)
    assert [row.label for row in rows(spec) if row.implementation == "ddp"] == [
        f"ddp({WIDE})/shm ×1, batch 8",
        f"ddp({NARROW})/shm ×2, batch 8",
    ]


ARCHS_REFUSED = [
    (("--arch", "mlp,mpl"), "unknown architecture 'mpl'. Did you mean 'mlp'?"),
    (("--arch", "mlp,,gpt"), "--arch: 'mlp,,gpt' has an empty entry"),
    (("--arch", "mlp:width=4,deep=3"), "unknown option of architecture 'mlp:width=4,deep=3'"),
    (("--arch", "mlp,gpt", "--data", "digits"), "--data digits does not fit --arch gpt"),
    (
        ("--arch", "mlp,gpt", "--input-shape", "3,32,32"),
        "--input-shape 3,32,32 with --arch mlp,gpt: it is not clear which architecture it",
    ),
    (
        ("--arch", "mlp,gpt", "--batch-sizes", "max"),
        "--batch-sizes max with --arch mlp,gpt: the largest batch of one architecture is not",
    ),
    (
        ("--arch", "mlp,gpt", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "h:1"),
        "--nnodes with --arch mlp,gpt: a sweep over several nodes measures one architecture",
    ),
    (
        ("--arch", "mlp,dlrm:sparse=true,tables=1,rows=10", "--optimizers", "adamw"),
        "--optimizers adamw for --arch dlrm:sparse=true,tables=1,rows=10: torch's adamw takes",
    ),
]


@pytest.mark.parametrize(("words", "message"), ARCHS_REFUSED)
def test_architectures_that_cannot_be_together_are_refused_in_a_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked_of_the_command(*words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def asked_of_the_command(*words: str) -> int:
    """The exit status, by the way of real trials: none is started."""
    return run(["sweep", "--dry-run", "--implementations", "ddp", "--gpus", "1", *words])
