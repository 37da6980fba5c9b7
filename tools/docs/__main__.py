"""`make docs`: makes all that is generated in the documentation anew, and says what changed."""

from __future__ import annotations

from tools.docs import DOCUMENTS, ROOT, pictures
from tools.docs.blocks import regenerate, sandbox
from tools.docs.stub import STUB, stub

with sandbox():
    for path in DOCUMENTS:
        old = path.read_text()
        if (new := regenerate(old)) != old:
            path.write_text(new)
            print(f"changed: {path.relative_to(ROOT)}")
    pictures.draw()
STUB.write_text(stub())
