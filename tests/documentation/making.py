"""What belongs into a generated part of a document."""

from __future__ import annotations

from tests.documentation import outputs, tables
from tests.documentation.blocks import Block


def made(block: Block) -> str:
    """The body as it should be; call it inside `outputs.sandbox()`."""
    if block.kind == "output":
        return outputs.console(block.body, block.details)
    if block.kind == "python":
        return outputs.session(block.body)
    if block.kind == "docstring":
        return tables.docstring(block.details)
    return tables.table(block.kind, block.details)
