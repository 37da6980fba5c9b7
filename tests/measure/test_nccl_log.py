"""Transports from recorded logs of NCCL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpbench.measure import nccl_log
from dpbench.measure.nccl_log import nccl_transports, transports_in
from dpbench.records.trial import INFINIBAND_UNUSED

INSIDE = """\
node1:412:431 [0] NCCL INFO NET/IB : No device found.
node1:412:431 [0] NCCL INFO Channel 00/24 : 0 1
node1:412:431 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node1:412:431 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct
"""
SOCKETS = "node1:9:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
INFINIBAND = "node1:9:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/2/GDRDMA\n"


def test_a_log_names_the_transports_that_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_log, "INFINIBAND", tmp_path / "infiniband")
    assert transports_in(INSIDE) == ("P2P", "SHM")
    assert transports_in(INFINIBAND + SOCKETS) == ("NET/IB", "NET/Socket")
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert transports_in(SOCKETS) == (INFINIBAND_UNUSED,)


def test_nccl_logs_into_a_file_unless_the_user_has_asked_for_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    with nccl_transports("nccl") as transports:
        assert transports() == ()
        Path(os.environ["NCCL_DEBUG_FILE"]).write_text(INSIDE)
        assert transports() == ("P2P", "SHM")
    assert "NCCL_DEBUG" not in os.environ
    for backend, level in (("gloo", None), ("nccl", "WARN")):
        if level is not None:
            monkeypatch.setenv("NCCL_DEBUG", level)
        with nccl_transports(backend) as transports:
            assert "NCCL_DEBUG_FILE" not in os.environ
            assert transports() == ()
