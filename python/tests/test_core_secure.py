"""Test holdfast.set_ps_context(): a program of `holdfast run` puts its job under TLS itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_core_job import LIMIT_S, TRAINER, job

import holdfast
from holdfast import cli

INIT = "    job = holdfast.init()\n"
CALL = """    import json
    secure = {"config_file_path": os.environ["TEST_CONFIG"], "enable_ssl": True}
    holdfast.set_ps_context(**secure, **json.loads(os.environ["TEST_PASSWORDS"]))
"""


def make_papers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make certificates, and have CALL name them."""
    tool = str(cli.programs() / "holdfast")
    subprocess.run([tool, "tls", "new", str(folder)], check=True, capture_output=True)
    passwords = {
        f"{role}_password": (folder / f"{role}.password").read_text().strip()
        for role in ("client", "server")
    }
    monkeypatch.setenv("TEST_CONFIG", str(folder / "config.json"))
    monkeypatch.setenv("TEST_PASSWORDS", json.dumps(passwords))


def test_core_a_wrong_file_is_named() -> None:
    holdfast.set_ps_context(config_file_path="/nowhere.json")  # Not read without enable_ssl.
    with pytest.raises(holdfast.UserError, match=r"/nowhere\.json"):
        holdfast.set_ps_context(config_file_path="/nowhere.json", enable_ssl=True)


def refused(tmp_path: Path, text: str, *, workers: int = 2) -> tuple[str, str]:
    """Run a job that has to fail; return the logs of its scheduler and of its workers."""
    program = tmp_path / "program.py"
    program.write_text(text)
    with job(tmp_path / "out", "--steps", "3", workers=workers, program=program) as running:
        output, _ = running.process.communicate(timeout=LIMIT_S)
    logs = {f.name: f.read_text() for f in (tmp_path / "out" / "log").glob("*.log")}
    assert running.process.returncode != 0, output
    assert not list((tmp_path / "out").glob("step-*")), "no step is made"
    workers_say = [text for name, text in logs.items() if name.startswith("worker_")]
    return logs["scheduler.log"], "".join(workers_say)


def alone(program: Path, role: str, *arguments: str) -> str:
    """Start one process of a job, which has to fail; return its output."""
    environment = {**os.environ, "MS_ROLE": role, "MS_WORKER_NUM": "1"}
    command = [sys.executable, str(program), *arguments]
    ended = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_core_a_failure_that_the_program_catches_is_not_followed_by_the_clear(
    tmp_path: Path,
) -> None:
    text = TRAINER.read_text()
    assert INIT in text
    call = 'holdfast.set_ps_context(config_file_path="/nowhere.json", enable_ssl=True)'
    caught = f"    try:\n        {call}\n    except holdfast.UserError:\n        pass\n"
    text = text.replace(INIT, caught + INIT)
    said = "".join(refused(tmp_path, text))  # The first process to fail ends the others.
    assert "serves job" not in said, said
    for role in ("MS_SCHED", "MS_WORKER"):
        said = alone(tmp_path / "program.py", role, "--out", str(tmp_path / "out"))
        assert "/nowhere.json" in said and "went on though that had failed" in said, said
        assert "serves job" not in said, said


def test_core_what_is_no_text_is_refused_as_well(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import holdfast\n"
        "try:\n    holdfast.set_ps_context(enable_ssl=True, client_password=None)\n"
        "except AttributeError:\n    pass\n"
        "holdfast.init()\n"
    )
    assert "went on though that had failed" in alone(program, "MS_WORKER")


def test_core_a_call_in_a_module_is_named_where_the_scheduler_does_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_papers(tmp_path / "tls", monkeypatch)
    monkeypatch.setenv("HOLDFAST_SCHEDULER_TIMEOUT", "5")
    (tmp_path / "channel.py").write_text(f"import os\nimport holdfast\ndef secure():\n{CALL}")
    text = TRAINER.read_text()
    call = "    import channel\n    channel.secure()\n"
    scheduler, workers = refused(tmp_path, text.replace(INIT, call + INIT))
    assert "it speaks TLS, and this process does not" in scheduler, scheduler
    assert "it speaks no TLS, and this process does" in workers, workers
    assert f"was called in module channel ({tmp_path / 'channel.py'})" in workers, workers
    assert "set HOLDFAST_TLS_CONFIG" in workers, workers


def test_core_a_program_puts_its_job_under_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, tool = tmp_path / "program.py", str(cli.programs() / "holdfast")
    make_papers(tmp_path / "tls", monkeypatch)
    text = TRAINER.read_text()
    assert INIT in text
    program.write_text(text.replace(INIT, CALL + INIT))
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
