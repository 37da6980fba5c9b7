"""Rules add rows beyond the grid, with their baseline, each once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.run.sweep.grid import plan_trials, rows
from dpbench.run.sweep.rules import Axes, inclusions, parse_rules
from dpbench.specs import AXES, WORKLOAD_SETTINGS, Inclusion, SweepSpec, TrialSpec, Variant, sweep
from dpbench.specs.settings import AUTO
from dpbench.specs.sweep import FIELDS
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.store import load_header
from dpbench.store.plausibility import impossible_in_spec
from tests.builders import WORKLOAD, sweep_spec, trial_spec
from tests.cli.synthetic import dpbench
from tests.cli.typed import axes_of
from tests.run.sweep.test_arguments import asked
from tests.run.sweep.test_arguments import parsed as parsed_sweep


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


def axes(**typed: str) -> Axes:
    return axes_of(IMPLEMENTATIONS, **typed)


def spec_of(values: Axes, **changes: object) -> SweepSpec:
    spec = sweep_spec(repetitions=1, variants=values.variants(), **changes)
    return replace(spec, bucket_cap_mb=values.base("bucket_cap_mb"))


def with_rules(text: str, values: Axes, spec: SweepSpec) -> SweepSpec:
    found = inclusions(parse_rules("--include", text, []), spec.implementations, values)
    return replace(spec, include=tuple(found.values()))


def described(trials: object) -> set[tuple[str, str, int, int, str]]:
    return {
        (t.implementation, t.backend, t.group_size, t.batch_size, t.workload.dtype)
        for t in trials  # type: ignore[attr-defined]
    }


def added(text: str, values: Axes, **changes: object) -> set[tuple[str, str, int, int, str]]:
    spec = spec_of(values, **changes)
    before, after = rows(spec), rows(with_rules(text, values, spec))
    assert after[: len(before)] == before
    assert len(after) == len({*after})
    return described(after) - described(before)


def test_a_rule_adds_its_row_and_the_baseline_of_it() -> None:
    rule = "implementation=ddp backend=shm group_size=2 batch_size=256 dtype=bf16"
    assert added(rule, axes()) == {
        ("ddp", "shm", 2, 256, "bf16"),
        ("single", "none", 1, 256, "bf16"),
    }


def test_what_a_rule_leaves_open_is_all_that_the_sweep_has_at_its_first_settings() -> None:
    values = axes(dtypes="bf16,f32")
    spec = spec_of(values)
    (row, *_) = rows(with_rules("batch_size=16", values, spec))[len(rows(spec)) :]
    assert row.batch_size == 16
    gained = added("batch_size=16", values, backends=("gloo", "shm"))
    assert {(name, backend, size) for name, backend, size, _, _ in gained} == {
        *(("single", "none", 1), ("dp", "threads", 1), ("dp", "threads", 2)),
        *(("ddp", "gloo", 1), ("ddp", "shm", 1), ("ddp", "gloo", 2), ("ddp", "shm", 2)),
    }
    assert {dtype for *_, dtype in gained} == {spec.workload.dtype}


def test_of_several_bucket_caps_the_first_is_that_of_a_rule_that_names_none() -> None:
    values = axes(bucket_cap_mb="5,auto")
    spec = spec_of(values, implementations=("ddp",), group_sizes=(2,))
    for rule, cap in (("batch_size=16", 5.0), ("batch_size=16 bucket_cap_mb=auto", None)):
        new = {*rows(with_rules(rule, values, spec))} - {*rows(spec)}
        assert {t.bucket_cap_mb for t in new if t.implementation == "ddp"} == {cap}


def test_an_open_rule_is_about_those_implementations_that_can_have_such_rows() -> None:
    names = {name for name, *_ in added("batch_size=16 bucket_cap_mb=2", axes())}
    assert names == {"ddp", "single"}
    assert {name for name, *_ in added("batch_size=16 backend=threads", axes())} == {"dp", "single"}


def test_rules_that_leave_out_are_about_the_grid_alone() -> None:
    exclude = (("implementation=ddp",), ("implementation=single", "batch_size=8"))
    gained = added("implementation=ddp batch_size=8", axes(), exclude=exclude)
    assert gained == {
        ("ddp", "gloo", 1, 8, "f32"),
        ("ddp", "gloo", 2, 8, "f32"),
        ("single", "none", 1, 8, "f32"),
    }


def rule_of(trial: TrialSpec) -> str:
    """Names all that a row of its implementation has."""
    traits = IMPLEMENTATIONS[trial.implementation]
    words = []
    for field in FIELDS:
        value = trial.setting(field)
        if traits.has_setting(field):
            words.append(sweep.condition(field, value))
    return " ".join(words)


some_axes = st.fixed_dictionaries(
    {},
    optional={
        "dtypes": st.sampled_from(["bf16", "f32,bf16", "bf16,f32"]),
        "bucket_cap_mb": st.sampled_from(["5", "auto", "5,auto", "auto,1,25"]),
        "sync_every": st.sampled_from(["3", "1,3"]),
        "channels_last": st.sampled_from(["no,yes", "yes"]),
    },
)


@settings(max_examples=60)
@given(
    typed=some_axes,
    names=st.lists(st.sampled_from([*IMPLEMENTATIONS]), min_size=1, unique=True),
    excluded=st.sampled_from([(), (("group_size=1",),), (("batch_size=8", "dtype=bf16"),)]),
    order_seed=st.sampled_from([None, 3]),
    data=st.data(),
)
def test_a_row_that_is_there_already_changes_nothing(
    typed: dict[str, str],
    names: list[str],
    excluded: tuple[tuple[str, ...], ...],
    order_seed: int | None,
    data: st.DataObject,
) -> None:
    values = axes(**typed)
    base = {name: values.base(name) for name in ("sync_every", "bucket_cap_mb", "allocator")}
    workload = replace(
        WORKLOAD, **{name: values.base(name) for name in AXES if name in WORKLOAD_SETTINGS}
    )
    spec = sweep_spec(
        workload=workload,
        implementations=tuple(names),
        backends=("gloo", "shm"),
        variants=values.variants(),
        exclude=excluded,
        order_seed=order_seed,
        **base,
    )
    there = rows(spec)
    assume(there)
    chosen = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True))
    again = with_rules(",".join(map(rule_of, chosen)), values, spec)
    assert again.include
    assert plan_trials(again) == plan_trials(spec)


REFUSED = [
    ("implementation=dpp", "unknown value for --include implementation: 'dpp'. Did you mean 'dp'?"),
    ("dtyp=bf16", "unknown field in --include: 'dtyp'. Did you mean 'dtype'?"),
    (
        "implementation=dp bucket-cap-mb=3",
        "--include implementation=dp bucket_cap_mb=3: dp has no bucket_cap_mb; expected another",
    ),
    ("implementation=dp backend=gloo", "dp has no backend but threads"),
    ("implementation=single group_size=2", "single has no group above 1"),
    ("comm_hook=bf16", "dp has no comm_hook; single has no comm_hook; expected an implementation"),
    (
        "implementation=dp group_size=3",
        "implementation=dp group_size=3: the group is above the 2 replicas that this sweep has",
    ),
    (
        "implementation=dp dtype=f16",
        "--include implementation=dp dtype=f16: dtype f16: it needs a GPU",
    ),
    ("implementation=local-sgd sync_every=3", "sync_every=3 with --steps 50: the window would"),
    (
        "implementation=local-sgd sync_every=3 timed_steps=4",
        "sync_every=3 timed_steps=4 with --steps 4: the window would not hold whole periods",
    ),
    ("timed_steps=0", "--include timed_steps: '0' is not a positive integer"),
]


@pytest.mark.parametrize(("rule", "message"), REFUSED)
def test_a_row_that_cannot_be_is_refused_in_a_line(
    rule: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--arch", "mlp", "--implementations", "dp,single", "--gpus", 2, "--oversubscribe")
    assert dpbench("sweep", "--dry-run", *words, "--include", rule) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_an_included_group_has_a_sample_for_every_replica(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--arch", "mlp", "--gpus", 2, "--oversubscribe", "--scaling", "strong")
    rule = "group_size=2 batch_size=1"
    assert dpbench("sweep", "--dry-run", *words, "--include", rule) == 2
    assert "1 is the global batch, smaller than the group of 2" in capsys.readouterr().err


def test_an_optimizer_that_cannot_train_the_architecture_is_refused_in_a_rule_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--arch", "dlrm:sparse=true,tables=1,rows=10", "--include", "optimizer=adamw")
    assert dpbench("sweep", "--dry-run", "--implementations", "ddp", *words) == 2
    message = "--include optimizer=adamw: optimizer adamw: torch's adamw takes dense gradients only"
    assert message in capsys.readouterr().err


def test_one_cap_for_all_rows_leaves_no_row_at_auto(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--arch", "mlp", "--bucket-cap-mb", "5", "--include", "bucket_cap_mb=auto")
    assert dpbench("sweep", "--dry-run", "--implementations", "ddp", *words) == 2
    assert "expected a number, or --bucket-cap-mb 5,auto" in capsys.readouterr().err


def test_what_a_rule_asks_for_counts_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--arch", "mlp", "--implementations", "dp", "--backends", "shm", "--gpus", 2)
    rule = ("--bucket-cap-mb", "5", "--include", "implementation=ddp group_size=2 batch_size=32")
    assert dpbench("sweep", "--dry-run", "--oversubscribe", *words, *rule) == 0
    assert "ddp(5 MiB)" in capsys.readouterr().out


TOML = """
arch = "mlp"
implementations = "ddp"
batch-sizes = 8
repetitions = 1
group-sizes = 1
[[include]]
implementation = "dp"
group-size = 2
batch-size = [8, 16]
channels-last = true
"""
YAML = "include: [{implementation: dp, group-size: 2, batch-size: [8, 16], channels-last: yes}]"


def test_tables_of_a_file_are_what_the_option_says(tmp_path: Path) -> None:
    read = {}
    for name, text in (("a.toml", TOML[TOML.index("[[") :]), ("a.yaml", YAML)):
        (tmp_path / name).write_text(text)
        read[name] = parsed_sweep(asked("--config", tmp_path / name))
    rule = "implementation=dp group_size=2 batch_size={} channels_last=yes"
    typed = parsed_sweep(asked("--include", f"{rule.format(8)},{rule.format(16)}"))
    assert read["a.toml"].include == read["a.yaml"].include == typed.include
    assert [*typed.include] == [f"--include {rule.format(size)}" for size in (8, 16)]


@pytest.mark.usefixtures("signals")
def test_rows_of_a_file_are_kept_with_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(TOML)
    words = ("sweep", "--config", "sweep.toml", "--quiet", "--no-charts", "--gpus", 2)
    assert dpbench(*words, "--oversubscribe", "--name", "a") == 0
    said = capsys.readouterr().err
    rule = "--include implementation=dp group_size=2 batch_size=8 channels_last=yes"
    assert f"{rule}: adds 2 rows, single as the baseline among them" in said
    _, command = load_header(Path("results/a"))
    lines = Path("results/a/trials.jsonl").read_text().splitlines()
    stored = [json.loads(line)["trial"] for line in lines]
    assert sorted((t["implementation"], t["group_size"], t["batch_size"]) for t in stored) == [
        *(("ddp", 1, 8), ("dp", 2, 8), ("dp", 2, 16)),
        *(("single", 1, 8), ("single", 1, 8), ("single", 1, 16)),
    ]
    assert dpbench(*command, "--resume") == 0
    assert "resuming: 6 of 6 trials are stored" in capsys.readouterr().err


def test_a_stored_rule_about_what_is_not_there_is_impossible() -> None:
    for wrong in ({"implementations": ("foo",)}, {"backend": "foo"}, {"group_size": 3}):
        include = (Inclusion(**{"implementations": ("ddp",), **wrong}),)  # type: ignore[arg-type]
        assert len([*impossible_in_spec(sweep_spec(include=include))]) == 1


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
    assert not [*impossible_in_spec(spec)]


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


def test_a_rule_adds_an_architecture_that_the_list_has_not(tmp_path: Path) -> None:
    rule = f"architecture={NARROW} group_size=2,group_size=2 architecture={WIDE}"
    spec = planned(tmp_path, "--arch", WIDE, "--group-sizes", 1, "--include", rule)
    assert [row.label for row in rows(spec) if row.group_size == 2] == [
        f"ddp({NARROW})/shm ×2, batch 8",
        f"ddp({WIDE})/shm ×2, batch 8",
    ]
    (added,) = spec.more_workloads
    assert (added.architecture, added.dataset) == (NARROW, "synthetic")


ARCHS_REFUSED = [
    (("--arch", "mlp,mpl"), "unknown architecture 'mpl'. Did you mean 'mlp'?"),
    (("--arch", "mlp,,gpt"), "--arch: 'mlp,,gpt' has an empty entry"),
    (("--arch", "mlp:width=4,deep=3"), "unknown option of architecture 'mlp:width=4,deep=3'"),
    (("--arch", "mlp,gpt", "--data", "digits"), "--data digits does not fit --arch gpt"),
    (("--arch", "mlp", "--include", "architecture=nope"), "unknown architecture 'nope'"),
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
