"""Makes what the documentation shows of dpbench: outputs, tables, pictures.

`make docs` makes all of it anew; tests/test_docs.py fails where a document says otherwise.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
