from __future__ import annotations

import pytest
import torch

from dpbench.architectures import _synthetic_rows


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_rows_of_a_class_lie_around_one_centre() -> None:
    rows, targets = _synthetic_rows.of_classes(3000, _seeded(), features=4, classes=3)
    for target in range(3):
        own = rows[targets == target]
        assert len(own) > 900
        assert own.std(dim=0).mean() == pytest.approx(_synthetic_rows.NOISE, abs=0.03)
    again, classes = _synthetic_rows.of_classes(
        3000, torch.Generator().manual_seed(1), features=4, classes=3
    )
    torch.testing.assert_close(
        rows[targets == 0].mean(dim=0), again[classes == 0].mean(dim=0), atol=0.1, rtol=0
    )


def test_numbers_depend_on_the_rows_but_for_the_noise() -> None:
    rows, numbers = _synthetic_rows.of_numbers(3000, _seeded(), features=4)
    fit = torch.linalg.lstsq(rows, numbers.unsqueeze(1)).solution
    rest = numbers - (rows @ fit).squeeze(1)
    assert rest.std() == pytest.approx(_synthetic_rows.NOISE, abs=0.03)


def test_about_as_many_are_clicked_as_not() -> None:
    _, clicked = _synthetic_rows.of_clicks(3000, _seeded(), dense=13, tables=26, rows=100)
    assert clicked.mean() == pytest.approx(0.5, abs=0.1)
