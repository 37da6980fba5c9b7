"""The documentation says what the code does: its paths exist, its terms are ours, and what it shows
of dpbench is what dpbench prints. tests/documentation/test_commands.py runs its commands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dpbench import store
from dpbench.cli.app import app
from dpbench.specs.sweep import FIELDS
from dpbench.specs.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from tests.documentation import DOCUMENTS, ROOT, outputs
from tests.documentation.blocks import Block, blocks
from tests.documentation.making import made
from tests.documentation.pictures import CHART, EXAMPLE, ORIGIN, PAGE, TERMINAL, origin

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}
README = TEXTS["README.md"]
ALL_TEXT = "".join(TEXTS.values())
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MEASURED = re.compile(r"\*Measured on \d{4}-\d\d-\d\d[^*]*\*\n\n(?:```)$")
ELLIPSIS = "…"
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
LARGEST_README = 10_000


def generated() -> Iterator[tuple[str, Block]]:
    for name, text in TEXTS.items():
        yield from ((name, block) for block in blocks(text))


@pytest.fixture(scope="module")
def copies() -> Iterator[None]:
    with outputs.sandbox():
        yield


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize(
    ("name", "block"),
    [pytest.param(name, block, id=f"{name}:{block.line}") for name, block in generated()],
)
def test_what_is_generated_is_up_to_date(name: str, block: Block) -> None:
    assert made(block) == block.body, f"{name}, line {block.line}: run make docs"


@pytest.mark.parametrize("words", sorted(set(re.findall(r"`dpbench ([^`]+)`", ALL_TEXT))))
def test_commands_within_sentences_have_their_options(words: str) -> None:
    name, *others = words.split()
    if name in COMMANDS:
        known = {name for option in COMMANDS[name].params for name in option.opts}
        assert {word for word in others if word.startswith("--")} <= known | {"--help"}
    else:
        assert name == ELLIPSIS or name.isupper() or name.startswith("--")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_shown_and_has_help(name: str) -> None:
    assert re.search(rf"^(?:\$ )?dpbench {name}\b|`dpbench {name}\b", ALL_TEXT, re.MULTILINE)
    assert f"\n## dpbench {name}\n" in TEXTS["docs/commands.md"]
    assert COMMANDS[name].help


def test_output_is_generated_or_says_when_and_where_it_was_measured() -> None:
    for name, text in TEXTS.items():
        for fenced in FENCED.finditer(text):
            if "\n$ dpbench" not in fenced[0]:
                continue
            before = text[: fenced.start()] + "```"
            is_generated = re.search(r"<!-- generated: output.* -->\n```$", before)
            assert is_generated or MEASURED.search(before), f"{name}: {fenced[0][:80]}"


def test_the_example_is_of_the_day_that_the_readme_names() -> None:
    days = {trial.started_utc[:10] for trial in store.load(ROOT / EXAMPLE).records}
    assert any(f"measured on {day}" in README for day in days)


@pytest.mark.parametrize(
    "path",
    sorted(
        set(
            re.findall(
                r"`((?:architectures|docs|dpbench|tests|results/(?:published|examples))/[\w./-]*)`",
                ALL_TEXT,
            )
        )
    ),
)
def test_paths_in_the_documentation_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", TEXTS)
def test_links_between_the_documents_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[name]):
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file.read_text()), target


def test_the_readme_has_absolute_links_to_what_exists() -> None:
    """A package index shows it without the repository around it."""
    assert not re.findall(r"\]\((?!https?:)[^)]+\)", README)
    declared = dict(re.findall(r"^\[([\w.-]+)\]: (\S+)$", README, re.MULTILINE))
    assert set(declared) == set(re.findall(r"\]\[([\w.-]+)\]", README))
    owner = HOME.removeprefix("https://github.com/")
    prefixes = (f"{HOME}/blob/main/", f"https://raw.githubusercontent.com/{owner}/main/")
    for address in declared.values():
        path = next(address.removeprefix(p) for p in prefixes if address.startswith(p))
        assert (ROOT / path).is_file(), address


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= LARGEST_README


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", TEXTS["docs/README.md"]))
    assert linked == pages
    site = (ROOT / "tests/documentation/mkdocs.yml").read_text()
    assert {*re.findall(r"(?<!/)\b([\w-]+\.md)", site)} - {"README.md"} == pages


def _anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_screen_has_the_two_commands_and_a_picture() -> None:
    first_screen = "\n".join(README.splitlines()[:16])
    assert "make sweep" in first_screen
    assert "make test" in first_screen
    assert f"][{TERMINAL.name}]" in first_screen


@pytest.mark.parametrize("picture", [CHART, PAGE, TERMINAL], ids=lambda path: path.name)
def test_pictures_are_small(picture: Path) -> None:
    assert 10_000 < picture.stat().st_size < 400_000


def test_pictures_are_those_of_the_example() -> None:
    assert ORIGIN.read_text() == origin(), "run make docs"


@pytest.mark.parametrize("name", [*IMPLEMENTATIONS, *PROCESS_GROUP_BACKENDS])
def test_every_implementation_and_backend_is_described(name: str) -> None:
    assert re.search(rf"^\|.*`{re.escape(name)}`.*\|", TEXTS["docs/measuring.md"], re.MULTILINE)


def test_every_condition_of_rules_is_named() -> None:
    (named,) = re.findall(
        r"^Conditions are about (.*?)\. ", TEXTS["docs/sweep-files.md"], re.M | re.S
    )
    assert [name.replace("-", "_") for name in re.findall(r"`(.+?)`", named)] == [*FIELDS]


@pytest.mark.parametrize(
    "target", sorted(set(re.findall(r"(?:^|`)make ([a-z]+)", ALL_TEXT, re.MULTILINE)))
)
def test_the_targets_of_make_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
