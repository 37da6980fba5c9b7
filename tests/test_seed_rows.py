"""Every requirement has a test that exists, or a reason."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.seed_rows import ROWS, all_ids

ROOT = Path(__file__).parent.parent


def test_every_row_has_tests_that_exist_or_a_reason() -> None:
    problems = []
    for row in ROWS:
        if not row.holds or not (row.tests or row.reason):
            problems.append(f"{row.row_id}: expected what must hold, and a test or a reason")
        problems += [f"{row.row_id}: {_problem(test)}" for test in row.tests if _problem(test)]
    ids = [row.row_id for row in ROWS]
    problems += [
        f"{row_id}: no line in tests/seed_rows.py" for row_id in all_ids() if row_id not in ids
    ]
    assert not problems, "\n".join(problems)
    assert ids == all_ids(), "a row stands twice, out of order, or is not known"


def _problem(test: str) -> str:
    """Say what is wrong with a `path::function`, or nothing."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return f"{path} does not exist; name a test that holds the row instead"
    defined, used = _functions(path)
    if name not in defined:
        return f"{path} has no function {name}; name a test that holds the row instead"
    if not name.startswith("test_") and name not in used:
        return f"nothing in {path} uses {name}, which is no test of its own"
    return ""


@cache
def _functions(path: str) -> tuple[set[str], set[str]]:
    """Return the functions that a file defines at its top, and all names that it uses."""
    tree = ast.parse((ROOT / path).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:  # `@world.body`: the test of the module runs it on ranks
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            used.add(node.name)
    return defined, used
