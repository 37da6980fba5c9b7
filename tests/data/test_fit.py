from __future__ import annotations

import pytest

from dpbench.architecture import load
from dpbench.data import fit, registry
from dpbench.errors import UsageError
from tests.launch.faulty import Healthy

FITS = {
    "digits": "mnist_cnn",
    "mnist": "mlp",
    "iris": "tabular:features=4,classes=3",
    "wine": "tabular:features=13,classes=3",
    "breast_cancer": "tabular",
    "diabetes": "tabular:features=10,classes=1",
    "text": "gpt:context=16,layers=1",
    "synthetic": "dlrm",
}


@pytest.mark.parametrize("dataset", registry.DATASETS)
def test_every_dataset_fits_an_architecture_that_ships(dataset: str) -> None:
    registry.check_fits(dataset, load(FITS[dataset]), named=FITS[dataset])


@pytest.mark.parametrize(
    ("dataset", "named", "has", "takes"),
    [
        ("digits", "gpt", "1×28×28 float32 with one int64 of 10 classes", "64 int64 with 64 int64"),
        ("iris", "tabular", "4 float32 with one int64 of 3 classes", "30 float32 with one int64"),
        ("diabetes", "tabular:features=10", "10 float32 with one float32", "10 float32 with one i"),
        (
            "breast_cancer",
            "tabular:classes=1",
            "30 float32 with one int64 of 2",
            "with one float32",
        ),
        ("iris", "tabular:features=4", "of 3 classes", "4 float32 with one int64 of 2 classes"),
        ("text", "gpt:vocabulary=255", "of 256 classes", "64 int64 with 64 int64 of 255 classes"),
        ("text", "bert", "a sequence of int64", "64 int64 and 9 int64 with 9 int64"),
        ("text", "mlp", "a sequence of int64 with as many", "1×28×28 float32 with one int64"),
        ("digits", "dlrm", "1×28×28 float32", "13 float32 and 26 int64 with one float32"),
    ],
)
def test_one_that_does_not_fit_is_refused_with_both_shapes(
    dataset: str, named: str, has: str, takes: str
) -> None:
    with pytest.raises(UsageError) as caught:
        registry.check_fits(dataset, load(named), named=named)
    message = str(caught.value)
    assert message.startswith(f"--data {dataset} does not fit --arch {named}: a sample is ")
    own, _, other = message.partition(", the architecture takes ")
    assert has in own
    assert takes in other
    assert "--data synthetic" in other


def test_more_classes_than_there_are_do_no_harm() -> None:
    named = "tabular:features=4,classes=5"
    registry.check_fits("iris", load(named), named=named)


def test_an_architecture_that_does_not_tell_its_classes_is_not_asked() -> None:
    class Four(Healthy):
        """Takes rows of four numbers, as the irises are."""

        def synthetic_batch(self, n, generator):  # type: ignore[no-untyped-def]
            rows, _ = super().synthetic_batch(n, generator)
            return rows, rows[:, 0].long()

    registry.check_fits("iris", Four(), named="four")


def test_an_architecture_without_synthetic_batches_is_not_compared() -> None:
    class Stored(Healthy):
        """Somebody's, for stored samples only."""

        def synthetic_batch(self, n, generator):  # type: ignore[no-untyped-def]
            raise NotImplementedError

    registry.check_fits("iris", Stored(), named="stored")


def test_the_context_is_the_length_of_a_sequence() -> None:
    assert fit.context_of(load("gpt:context=16,layers=1")) == 16
