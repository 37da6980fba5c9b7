"""The documentation says what the code does: its paths exist, its terms are ours, and what it shows
of dpbench is what dpbench prints. All commands are parsed, and those that need no ranks run.

A command stands on a line of a fenced block, or within a sentence with its arguments. A line with
an ellipsis and a command with a placeholder in capitals are no commands.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dpbench.cli.app import commands, run
from dpbench.cli.help import MANY_ROWS
from dpbench.run.init import MODEL_TEMPLATE
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS
from tools.docs import DOCUMENTS, ROOT
from tools.docs.blocks import GENERATED, generate_body, sandbox
from tools.docs.pictures import ORIGIN, origin
from tools.docs.stub import STUB, stub

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}
README = TEXTS["README.md"]
ALL_TEXT = "".join(TEXTS.values())
COMMANDS = commands().commands
BLOCK = re.compile(r"^```\w*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MEASURED = re.compile(r"\*Measured on \d{4}-\d\d-\d\d[^*]*\*\n\n(?:```)$")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Repository"]
MAX_README = 7_500
MAX_DOCS = 64_000
"""Bytes of all pages together."""
CONTINUED = re.compile(r"\\\n|\n\s+(?=--)")
COMMAND = re.compile(
    r"^[-$ ]*(?:[A-Z_]+=\S+ )*(?:run: |exec |python -m |srun [^']*?)?dpbench (?P<words>[a-z].*)"
)
IN_A_SENTENCE = re.compile(r"`dpbench ([a-z-]+ [^`]+)`")
PLACEHOLDER = re.compile(r"(?<![\w$-])[A-Z]+\b")
NAMED_FILE = re.compile(r"# (?P<name>[\w/]+\.\w+)\n")
"""The first line of a block that shows a file."""
RESULTS = re.compile(r"results/(?!examples|published)[\w-]+")
EXAMPLE_FOLDER = ROOT / "results" / "examples" / "two-cores"
READ_ONLY = ("report", "compare", "explain", "plot", "project", "list", "init")
NEEDS_MORE = re.compile(r"(?:^| )(?:-m |train\.py)|--nnodes|--example|\bmax\b|\btorchvision:")
"""Words of a command that starts real processes, looks for other nodes, needs a library, or copies
what is staged already."""


@pytest.fixture(scope="module")
def copies() -> Iterator[None]:
    with sandbox():
        yield


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, id=f"{name}:{text.count(chr(10), 0, part.start()) + 1}")
        for name, text in TEXTS.items()
        for part in GENERATED.finditer(text)
    ],
)
def test_what_is_generated_is_up_to_date(part: re.Match[str]) -> None:
    assert generate_body(part) == part["body"], "run make docs"


def test_every_command_is_shown_and_has_help() -> None:
    for name, command in COMMANDS.items():
        example = rf"^(?:\$ )?dpbench {name}\b|`dpbench {name}\b"
        assert re.search(example, ALL_TEXT, re.MULTILINE), name
        described = f"\n### dpbench {name}\n" in TEXTS["docs/reference.md"]
        assert described is (len(command.params) > MANY_ROWS), name
        assert command.help


def test_output_is_generated_or_says_when_and_where_it_was_measured() -> None:
    for name, text in TEXTS.items():
        for fenced in BLOCK.finditer(text):
            if "\n$ dpbench" not in fenced[0]:
                continue
            before = text[: fenced.start()] + "```"
            is_generated = re.search(r"<!-- generated: output.* -->\n```$", before)
            assert is_generated or MEASURED.search(before), f"{name}: {fenced[0][:80]}"


def test_paths_in_the_documentation_exist() -> None:
    named = re.findall(
        r"`((?:architectures|docs|dpbench|tests|tools|results/(?:published|examples))/[\w./-]*)`",
        ALL_TEXT,
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", TEXTS)
def test_links_between_the_documents_lead_somewhere(name: str) -> None:
    """They are relative: nothing is published yet."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[name]):
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file.read_text()), target
    assert HOME not in TEXTS[name]


def test_the_tagline_is_the_same_everywhere() -> None:
    tagline = PROJECT["description"]
    assert README.splitlines()[2] == tagline
    assert commands().help == tagline
    assert tagline in (ROOT / "tools/docs/mkdocs.yml").read_text()


def test_the_pages_are_few_and_short() -> None:
    assert len(README.encode()) <= MAX_README
    pages = [*(ROOT / "docs").glob("*.md")]
    assert len(pages) <= 12
    assert sum(page.stat().st_size for page in pages) <= MAX_DOCS


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", TEXTS["docs/README.md"]))
    assert linked == pages
    site = (ROOT / "tools/docs/mkdocs.yml").read_text()
    assert {*re.findall(r"(?<!/)\b([\w-]+\.md)", site)} - {"README.md"} == pages


def _anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pictures_are_those_of_the_example() -> None:
    assert ORIGIN.read_text() == origin(), "run make docs"


def test_editors_know_the_arguments_of_python_calls() -> None:
    assert STUB.read_text() == stub(), "run make docs"


def test_every_implementation_and_backend_is_described() -> None:
    for name in (*IMPLEMENTATIONS, *BACKENDS):
        row = rf"^\|.*`{re.escape(name)}`.*\|"
        assert re.search(row, TEXTS["docs/measuring.md"], re.MULTILINE), name


def test_the_targets_of_make_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"(?:^|`)make ([a-z]+)", ALL_TEXT, re.MULTILINE)} <= {*targets}


def test_continuous_integration_runs_every_test() -> None:
    assert "\nmake test\nmake full\n" in (ROOT / ".ci" / "run").read_text()


def shown(text: str) -> Iterator[list[str]]:
    """The words behind `dpbench` of each command of a document."""
    text = GENERATED.sub(lambda part: part["head"], text)  # its commands run where it is made
    for block in BLOCK.finditer(text):
        for line in CONTINUED.sub(" ", block["body"]).splitlines():
            if "…" not in line and (command := COMMAND.match(line)):
                yield _words(command["words"])
    for words in IN_A_SENTENCE.findall(BLOCK.sub("", text)):
        if "…" not in words and not PLACEHOLDER.search(words):
            yield _words(words)


def _words(command: str) -> list[str]:
    """The words before a comment, a pipe or a redirection."""
    return shlex.split(re.split(r" [|>] ", command)[0], comments=True)


SHOWN = [
    pytest.param(words, id=f"{name} {' '.join(words)}")
    for name, text in TEXTS.items()
    for words in shown(text)
    if words[0] != "launch"  # it takes torchrun's options, and a script with options of its own
]


@pytest.mark.parametrize("words", SHOWN)
def test_every_command_that_is_shown_can_be_parsed(words: list[str]) -> None:
    with contextlib.suppress(typer.Exit):
        COMMANDS[words[0]].make_context(words[0], words[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "README.md" else pytest.mark.full) for name in TEXTS],
)
@pytest.mark.usefixtures("synthetic")
def test_every_command_that_needs_no_ranks_runs(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(TEXTS[name])
    for variable, value in {"COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    for words in shown(TEXTS[name]):
        if words[0] not in ("sweep", *READ_ONLY) or NEEDS_MORE.search(" ".join(words)):
            continue
        prepare(words)
        # Charts take time; rows in a file have none.
        words += ["--no-charts"] * (words[0] in ("sweep", "report") and "--output" not in words)
        if words[0] == "sweep":
            words += ["--oversubscribe"] if "--gpus" in words else []  # whatever cores there are
            words += ["--repetitions", "2"] if "--repetitions" not in words else []
        assert run(words) == 0, (words, capsys.readouterr().err[-2000:])


def stage(text: str) -> None:
    """Lay out what the commands of a document read: its files, a model, and results."""
    Path("results").mkdir()
    for name in ("examples", "published"):
        Path("results", name).symlink_to(ROOT / "results" / name)
    files = dict.fromkeys(("my_model.py", "model.py"), MODEL_TEMPLATE.read_text())
    files["table.csv"] = (ROOT / "results/published/torch_ddp_rtx3090.csv").read_text()
    for block in BLOCK.finditer(text):
        if named := NAMED_FILE.match(block["body"]):
            files[named["name"]] = block["body"]
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)


def prepare(words: list[str]) -> None:
    """Copy the example to the results that a command reads, and clear those that it makes."""
    made = f"results/{words[words.index('--name') + 1]}" if "--name" in words else ""
    for name in {*RESULTS.findall(shlex.join(words))} - {made}:
        if not Path(name).exists():
            shutil.copytree(EXAMPLE_FOLDER, name)
    if made and "--resume" not in words:
        shutil.rmtree(made, ignore_errors=True)
    if words[0] == "init":
        Path(words[1]).unlink(missing_ok=True)
