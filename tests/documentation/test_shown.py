"""Every command that the documentation shows runs, small, or ends with the line that it should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.documentation import DOCUMENTS, ROOT
from tests.documentation.shown import Shown, files, shown
from tests.documentation.stage import Stage, expected

pytestmark = pytest.mark.slow

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}
COMMANDS = [command for name, text in TEXTS.items() for command in shown(name, text)]
PAGE = """\
Look first: `dpbench explain results/x --verbose`, as in `dpbench report DIR` or `dpbench list`.

```
$ A=1 dpbench sweep --name x \\
    --gpus 2        # two of them
dpbench compare a … b
dpbench list implementations > names
torchrun --nnodes 2 -m dpbench train --name y
dpbench: a line that was printed
```

<!-- generated: output -->
```
$ dpbench doctor
```

```yaml
steps:
  - run: >
      python -m dpbench check --exclude 'a=1 b=2'
      --strict
```

```toml
# sweep.toml
gpus = 2
```
"""


@pytest.fixture(scope="module")
def stages() -> Iterator[dict[str, Stage]]:
    """A document's commands share a folder: one reads what another has made."""
    with TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        yield {
            name: Stage(place / str(number), files(text))
            for number, (name, text) in enumerate(TEXTS.items())
        }


def _begun_by(command: Shown, stage: Stage) -> list[Shown]:
    """What a command goes on with, where another process has run the commands before it."""
    before = COMMANDS[: COMMANDS.index(command)] if "--resume" in command.words else []
    return [
        each
        for each in before
        if each.document == command.document
        and (name := each.value("--name"))
        and re.search(rf"\b{re.escape(name)}\b", str(command))
        and not any((stage.folder / kind / name).exists() for kind in ("runs", "results"))
    ]


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, id=f"{each.document}:{each.line}:{each.name}") for each in COMMANDS],
)
def test_every_command_that_is_shown_runs(command: Shown, stages: dict[str, Stage]) -> None:
    statuses, line = expected(command)

    stage = stages[command.document]
    for earlier in _begun_by(command, stage):
        stage.play(earlier)
    ended = stage.play(command)

    assert ended.status in statuses, ended.said
    assert re.search(line, ended.said), ended.said


def test_commands_are_found_in_blocks_in_yaml_and_in_sentences() -> None:
    found = shown("page.md", PAGE)
    assert [(each.line, str(each)) for each in found] == [
        (1, "explain results/x --verbose"),
        (4, "sweep --name x --gpus 2"),
        (7, "list implementations"),
        (8, "train --name y"),
        (17, "check --exclude 'a=1 b=2' --strict"),
    ]
    assert found[1].variables == (("A", "1"),)
    assert [each.in_rank for each in found] == [False, False, False, True, False]
    assert files(PAGE) == {"sweep.toml": "# sweep.toml\ngpus = 2\n"}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("dpbench report results/x --colums seed", 2),
        ("dpbench sweep --arch no_such_model.py:make", 2),
        ("dpbench check results/x --baseline results/examples/missing", 2),
        ("dpbench explain results/x", 0),
    ],
)
def test_a_command_that_does_not_work_is_noticed(text: str, status: int, tmp_path: Path) -> None:
    [command] = shown("page.md", f"```\n{text}\n```\n")
    assert Stage(tmp_path / "stage", {}).play(command).status == status
