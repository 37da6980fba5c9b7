"""The imports of the server of ranks."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from dpbench.launch import preload


def test_a_module_that_cannot_be_imported_stops_no_other_and_leaves_garbage_collection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "preloaded_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(preload, "MODULES", ("no_such_module", "preloaded_here"))
    try:
        preload._import_all()
        assert gc.isenabled()
        assert sys.modules.pop("preloaded_here", None) is not None
    finally:
        gc.enable()
