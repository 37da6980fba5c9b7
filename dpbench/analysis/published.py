"""Published numbers of others, from a CSV file with a row for each configuration.

Columns: `group_size` (or `gpus`), and one speed: `images_per_second`, `seconds_per_step` (with a
batch size), `speedup` over one replica, or `seconds`, `minutes` or `hours` for a fixed amount of
work (strong scaling). Optional are `batch_size` (or `batch_per_gpu`; per replica), `backend`,
`implementation` (default "published"), `item` (default "images"; speeds that count different items
are not compared), `source` (shown below the table), `scaling` (must be weak) and `gpus_per_node`.
Columns named *_claimed are shown as claims. Other columns are not read, and a note says so; a
column without a name, such as a data frame's index, is skipped. An empty cell means that it is not
known.

Numbers are single values without an interval. Everything else is an error that names the line.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpbench.errors import FileError
from dpbench.files import protect
from dpbench.messages import escaped
from dpbench.specs.traits import SINGLE

CLAIM_END = "_claimed"
COLUMN_SPELLINGS = {"gpus": "group_size", "batch_per_gpu": "batch_size"}
UNIT_SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
SPEED_COLUMNS = ("images_per_second", "seconds_per_step", "speedup", *UNIT_SECONDS)
MAX_SHOWN_CHARACTERS = 120
"""Characters of a wrong value that an error repeats."""

PositiveCount = Annotated[int, Field(ge=1, lt=10**9)]
PositiveSpeed = Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False)]
"""Wider than any training speed or time, and far from where floats overflow."""


def is_table(path: Path) -> bool:
    """Whether the path is a .csv file and no results folder."""
    return path.suffix.lower() == ".csv" and not path.is_dir()


class PublishedLine(BaseModel):
    """One line of the file; None and "" for what is not known."""

    model_config = ConfigDict(extra="allow", frozen=True)

    group_size: PositiveCount
    batch_size: PositiveCount | None = None
    images_per_second: PositiveSpeed | None = None
    seconds_per_step: PositiveSpeed | None = None
    speedup: PositiveSpeed | None = None
    seconds: PositiveSpeed | None = None
    minutes: PositiveSpeed | None = None
    hours: PositiveSpeed | None = None
    implementation: str = "published"
    backend: str | None = None
    item: str = "images"
    source: str = ""
    """Who measured, on what hardware and data."""
    scaling: Literal["weak"] = "weak"
    gpus_per_node: PositiveCount | None = None

    @property
    def claims(self) -> dict[str, str]:
        """What it states that nobody measured here, by column."""
        return {k: text for k, text in (self.model_extra or {}).items() if k.endswith(CLAIM_END)}

    @property
    def unread(self) -> list[str]:
        """Names of columns that have no meaning here."""
        return [name for name in self.model_extra or {} if name not in self.claims]

    @property
    def series(self) -> tuple[object, ...]:
        """The scaling curve that it is a point of; speeds that count other items are on another."""
        return self.item, self.implementation, self.backend, self.batch_size

    @property
    def key(self) -> object:
        """The place on the curve, where no other line may be."""
        return self.series, self.group_size

    @property
    def is_single(self) -> bool:
        return self.implementation == SINGLE and self.group_size == 1

    @property
    def items_per_second(self) -> float:
        """Items per second of all replicas; 0 if that is not stated."""
        items = self.group_size * (self.batch_size or 0)
        return self.images_per_second or items / (self.seconds_per_step or math.inf)

    @property
    def global_batch_size(self) -> int:
        """Samples of all replicas in a micro-step; 0 if that is not known: of times and speedups it
        is not stated whether the batch was per replica."""
        return self.group_size * (self.batch_size or 0) if self.items_per_second else 0

    @property
    def fixed_work_seconds(self) -> float:
        """Seconds for a fixed amount of work; 0 if that is not stated."""
        return sum((getattr(self, unit) or 0.0) * seconds for unit, seconds in UNIT_SECONDS.items())

    @property
    def throughput(self) -> float:
        """Items, or fixed amounts of work, per second; 0 if it states a speedup only."""
        if self.fixed_work_seconds:
            return 1 / self.fixed_work_seconds
        return self.items_per_second


def read_lines(path: Path) -> list[PublishedLine]:
    """The lines of the file, each of another configuration with a speed; raises FileError if it has
    another form."""
    cells_by_line = _cells(path)
    columns = [*next(iter(cells_by_line.values()))]
    speeds = [name for name in SPEED_COLUMNS if name in columns]
    allowed = ({"images_per_second", "seconds_per_step"}, *({column} for column in SPEED_COLUMNS))
    if {*speeds} not in allowed:
        raise FileError(
            f"{path}, line 1: expected exactly one column out of {', '.join(SPEED_COLUMNS)}, "
            f"got {', '.join(speeds) or columns}"
        )
    numbers: dict[object, int] = {}
    lines = []
    for number, cells in cells_by_line.items():
        place = f"{path}, line {number}"
        try:
            line = PublishedLine.model_validate(
                {name: text for name, text in cells.items() if text}
            )
        except ValidationError as error:
            first = error.errors()[0]
            column = str(first["loc"][0])
            expected = first["msg"].replace("Input should be", "expected")
            got = escaped(repr(cells.get(column, "")), MAX_SHOWN_CHARACTERS)
            raise FileError(f"{place}, column {column!r}: {expected}, got {got}") from None
        if not (line.speedup or line.throughput):
            needed = "batch_size" if line.seconds_per_step else speeds[-1]
            raise FileError(f"{place}, column {needed!r}: expected a number, got ''")
        earlier = numbers.setdefault(line.key, number)
        if earlier != number:
            raise FileError(
                f"{place}: expected each configuration once, got that of line {earlier}"
            )
        lines.append(line)
    return lines


def _cells(path: Path) -> dict[int, dict[str, str]]:
    """The cells of each line that has any, by column, and the lines by their number."""
    import pandas as pd  # half a second, which only published numbers need

    form = {"dtype": str, "header": None, "keep_default_na": False, "skip_blank_lines": False}
    try:
        protect(path)
        table = pd.read_csv(path, encoding="utf-8-sig", **form).map(str.strip).to_numpy().tolist()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise FileError(f"{path} is not a CSV file in UTF-8: {str(error).strip()}") from None
    header = [COLUMN_SPELLINGS.get(name, name) for name in table[0]]
    # A column without a name is the index that a data frame was written with.
    if doubled := [name for name in header if name and header.count(name) > 1]:
        raise FileError(f"{path}, line 1: expected each column once, got {doubled[0]!r} twice")
    lines = {
        number: {name: text for name, text in zip(header, cells, strict=True) if name}
        for number, cells in enumerate(table[1:], 2)
        if any(cells)
    }
    if not lines:
        raise FileError(f"{path}: expected a line of column names and lines of values")
    return lines
