from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpbench.training.dp_train import dp_train
from tests.training.dp_train.tasks import make_model, run, samples

NAN, INF = float("nan"), float("inf")


def unused() -> nn.Module:
    raise AssertionError("nothing may be made before the arguments are checked")


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("n_gpu", 0, ValueError),
        ("n_gpu", -1, ValueError),
        ("n_gpu", 1.5, TypeError),
        ("n_gpu", "2", TypeError),
        ("n_gpu", True, TypeError),
        ("n_iter", -1, ValueError),
        ("n_iter", 2.0, TypeError),
        ("batch_per_replica", 0, ValueError),
        ("lr", 0, ValueError),
        ("lr", -0.1, ValueError),
        ("lr", NAN, ValueError),
        ("lr", INF, ValueError),
        ("lr", "1", TypeError),
        ("max_norm", 0, ValueError),
        ("max_norm", -5.0, ValueError),
        ("max_norm", NAN, ValueError),
        ("max_norm", None, TypeError),
        ("mode", "process", ValueError),
        ("on_nonfinite", "ignore", ValueError),
        ("verbose", -1, ValueError),
        ("verbose", 1.5, TypeError),
        ("seed", -1, ValueError),
        ("seed", None, TypeError),
        ("time_limit_seconds", 0, ValueError),
        ("loss_fn", 3, TypeError),
        ("forward_fn", "f", TypeError),
        ("target_fn", [], TypeError),
        ("optimizer", None, TypeError),
        ("scheduler", 1, TypeError),
        ("on_step", "print", TypeError),
        ("devices", [], TypeError),
        ("devices", "cpu", TypeError),
    ],
)
def test_bad_arguments_are_named_before_anything_is_made(
    name: str, value: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=rf"got {name}="):
        dp_train(unused, samples(), **{name: value})


def test_devices_must_fit() -> None:
    with pytest.raises(ValueError, match="n_gpu=3 and 2 devices"):
        dp_train(unused, samples(), n_gpu=3, devices=["cpu", "cpu"])
    with pytest.raises(ValueError, match="cuda:77"):
        dp_train(unused, samples(), devices=["cuda:77"])


def test_more_replicas_than_gpus_must_be_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"n_gpu=3, but 2 CUDA devices are visible.*devices="):
        dp_train(unused, samples(), n_gpu=3)


def test_by_default_there_is_one_replica_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    result = run(n_gpu=None, n_iter=2)
    assert [len(step) for step in result.indices] == [1, 1]


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ([], ValueError, "data is empty"),
        (samples(2), ValueError, "got 2 samples for 3 in a step"),
        (iter(samples()), TypeError, "expected a sequence of samples"),
        (None, TypeError, "NoneType"),
    ],
)
def test_data_that_cannot_fill_a_step_is_refused(
    data: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        dp_train(unused, data, n_gpu=3)


def test_what_is_no_factory_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a function.*deepcopy"):
        run(make_model=make_model())
    with pytest.raises(TypeError, match="make_model made 3"):
        run(make_model=lambda: 3)
    with pytest.raises(ValueError, match="no parameters"):
        run(make_model=nn.Tanh)
    model = make_model()
    with pytest.raises(ValueError, match=r"replicas 0 and 1 share the parameter '0\.weight'"):
        run(make_model=lambda: model)


def test_models_that_differ_are_refused_with_the_difference() -> None:
    widths = [4, 5]
    with pytest.raises(ValueError, match=r"'0\.weight' is \(\(4, 3\).*replica 1"):
        run(make_model=lambda: nn.Sequential(nn.Linear(3, widths.pop(0)).double()))
    biases = [True, False]
    with pytest.raises(ValueError, match=r"'bias' is .* and missing in replica 1"):
        run(make_model=lambda: nn.Linear(3, 1, bias=biases.pop(0)).double())


@pytest.mark.parametrize(
    ("forward_fn", "kind", "message"),
    [
        (lambda m, s: m(s[0]).expand(2), ValueError, r"a loss of shape \(2,\)"),
        (lambda m, s: 1.0, TypeError, r"the loss 1\.0"),
        (lambda m, s: s[1].sum(), ValueError, "a loss without a gradient"),
    ],
)
def test_a_loss_that_cannot_be_used_is_located(
    forward_fn: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"{message} in iteration 1, replica 0, sample"):
        run(forward_fn=forward_fn, loss_fn=None)
