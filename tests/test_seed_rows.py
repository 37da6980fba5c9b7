"""Every requirement in seed_rows.md has tests that exist, or a reason."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROWS = re.findall(
    r"^\| ([A-Z]+-?\d+[a-z]?) \| .+? \| (.*) \|$",
    (ROOT / "tests" / "seed_rows.md").read_text(),
    re.MULTILINE,
)
COUNT = 252


def test_every_row_has_tests_that_exist_or_a_reason() -> None:
    assert len({row_id for row_id, _ in ROWS}) == len(ROWS) == COUNT
    problems = []
    for row_id, how in ROWS:
        tests = re.findall(r"`(\S+?)::(\w+)`", how)
        if not tests and not how.strip():
            problems.append(f"{row_id}: expected a test or a reason")
        for path, name in tests:
            if not (ROOT / path).is_file():
                problems.append(f"{row_id}: {path} does not exist")
            elif name not in _tests(path):
                problems.append(f"{row_id}: {path} has no test {name}, and uses no function of it")
    assert not problems, "\n".join(problems)


@cache
def _tests(path: str) -> set[str]:
    """The tests of a file, and the functions that it runs on ranks."""
    tree = ast.parse((ROOT / path).read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        one.name
        for one in functions
        # `@world.body`: the test of the module runs it on ranks
        if one.name.startswith("test_") or one.name in used or one.decorator_list
    }
