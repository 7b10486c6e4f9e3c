"""Every option of MindSpore's msrun, given to the Python msrun; for the native, options_test.cc."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "apps/testing/msrun_options.json"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(("option", "code", "words"), json.loads(TABLE.read_text()))
def test_core_msrun_treats_an_option_as_the_native_one_does(
    tmp_path: Path, option: str, code: int, words: str
) -> None:
    command = [sys.executable, "-m", "holdfast", "msrun", f"--master_port={free_port()}"]
    command += [f"--log_dir={tmp_path}", "--worker_num=1", "--join=True", option]
    command += ["/bin/sh", "-c", "echo within $MS_TOPO_TIMEOUT"]
    done = subprocess.run(
        command,
        env={"MS_TOPO_TIMEOUT": "55", "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert words in done.stdout
    if code == 0:
        name, _, value = option.partition("=")
        limit = value if name == "--cluster_time_out" else "55"
        assert (tmp_path / "worker_0.log").read_text() == f"within {limit}\n"
