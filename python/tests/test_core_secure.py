"""Test holdfast.set_ps_context(): a program of `holdfast run` puts its job under TLS itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from test_core_job import TRAINER, job

import holdfast
from holdfast import cli

INIT = "    job = holdfast.init()\n"
CALL = """    import json
    secure = {"config_file_path": os.environ["TEST_CONFIG"], "enable_ssl": True}
    holdfast.set_ps_context(**secure, **json.loads(os.environ["TEST_PASSWORDS"]))
"""


def test_core_a_wrong_file_is_named() -> None:
    holdfast.set_ps_context(config_file_path="/nowhere.json")  # Without enable_ssl it is not read.
    with pytest.raises(holdfast.UserError, match=r"/nowhere\.json"):
        holdfast.set_ps_context(config_file_path="/nowhere.json", enable_ssl=True)


def test_core_a_program_puts_its_job_under_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers, program = tmp_path / "tls", tmp_path / "program.py"
    tool = str(cli.programs() / "holdfast")
    subprocess.run([tool, "tls", "new", str(papers)], check=True, capture_output=True)
    passwords = {
        f"{role}_password": (papers / f"{role}.password").read_text().strip()
        for role in ("client", "server")
    }
    text = TRAINER.read_text()
    assert INIT in text
    program.write_text(text.replace(INIT, CALL + INIT))
    monkeypatch.setenv("TEST_CONFIG", str(papers / "config.json"))
    monkeypatch.setenv("TEST_PASSWORDS", json.dumps(passwords))
    name = f"core-secure-{os.getpid()}"
    monkeypatch.setenv("HOLDFAST_JOB", name)
    shape = ("--steps", "100", "--pause", "0.01")
    with job(tmp_path / "plain", *shape, workers=2) as plain:
        expected = plain.results()
    options = ("--spares", "1")
    with job(tmp_path / "out", *shape, workers=2, options=options, program=program) as running:
        running.until(lambda: int(running.step() >= 10))
        os.kill(running.until(lambda: running.pid(1)), signal.SIGKILL)
        command = [tool, "status", "--json", "--job", name]
        said = subprocess.run(command, check=False, capture_output=True, text=True)
        assert json.loads(said.stdout)["world_size"] == 2, said.stdout + said.stderr
        folder = Path(f"/dev/shm/holdfast-{os.getuid()}/{name}")
        assert (folder / "tls.json").exists() and (folder / "tickets").exists()
        assert running.results() == expected
