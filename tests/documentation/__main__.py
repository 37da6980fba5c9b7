"""`make docs`: makes all that is generated in the documentation anew, and says what changed."""

from __future__ import annotations

from collections.abc import Iterator

from tests.documentation import DOCUMENTS, ROOT, outputs, pictures
from tests.documentation.blocks import renewed
from tests.documentation.making import made


def main() -> None:
    with outputs.sandbox():
        for name in (*_documents(), *pictures.draw()):
            print(f"changed: {name}")


def _documents() -> Iterator[str]:
    for path in DOCUMENTS:
        old = path.read_text()
        new = renewed(old, made)
        if new != old:
            path.write_text(new)
            yield str(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
