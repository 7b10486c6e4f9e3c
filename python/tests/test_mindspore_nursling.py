"""Nurslings, with a nursery that imports no MindSpore: who runs the program, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mindspore_job import until

import holdfast

NURSLING = Path(holdfast.__file__).parent / "bin" / "nursling"
# Replaces Python: started as a nursery, it runs one that needs no imports.
PYTHON = """#!/bin/sh
[ "$2" = -m ] && exec {python} -u nursery.py "$4"
exec {python} "$@"
"""
NURSERY = """
from holdfast.mindspore import _nursery
_nursery.prepare = lambda: None
_nursery.main()
"""
TELLS = "import os\nprint('RAN', os.getpid(), os.getppid(), flush=True)\n"


def words_of(pid: int) -> str:
    """Return the value of HOLDFAST_AGENT for an agent."""
    began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{pid}:{began}:{Path('/proc/self/ns/pid').stat().st_ino}"


class Host:
    """A folder with an agent, which does nothing, and the nurslings that it might have started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, f"holdfast-test-{uuid.uuid4().hex}"
        self.agent = subprocess.Popen(["sleep", "600"])
        self.nurslings: list[subprocess.Popen[bytes]] = []
        self.python = folder / "python"
        self.python.write_text(PYTHON.format(python=sys.executable))
        self.python.chmod(0o755)
        (folder / "nursery.py").write_text(NURSERY)

    def start(self, script: str, python: str = "") -> subprocess.Popen[bytes]:
        number = len(self.nurslings)
        (self.folder / f"{number}.py").write_text(script)
        own = {"MS_ROLE": "MS_WORKER", "HOLDFAST_ATTEMPT": "1"}
        package = str(Path(holdfast.__file__).parent.parent)
        with open(self.folder / f"{number}.log", "wb") as log:
            nursling = subprocess.Popen(
                [NURSLING, self.name, "all", python or str(self.python), "-u", f"{number}.py"],
                cwd=self.folder,
                env={**os.environ, **own, "HOLDFAST_AGENT": words_of(self.agent.pid)}
                | {"PYTHONPATH": package},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self.nurslings.append(nursling)
        return nursling

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()

    def ran(self, number: int) -> list[int]:
        """Return the id of the process that ran a script, and that of its parent."""
        line = until(lambda: [x for x in self.log(number).splitlines() if x.startswith("RAN")], 60)
        assert line, self.log(number)
        return [int(word) for word in line[0].split()[1:]]


def is_gone(pid: int) -> bool:
    return bool(until(lambda: not Path(f"/proc/{pid}").exists(), 30))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.agent.kill()
    made.agent.wait()
    for nursling in made.nurslings:
        if nursling.poll() is None:
            os.killpg(nursling.pid, signal.SIGKILL)
        nursling.wait()


def test_mindspore_a_stopped_nursery_costs_a_second_and_nobody_runs_twice(host: Host) -> None:
    host.start(TELLS).wait(60)
    _, nursery = host.ran(0)
    os.kill(nursery, signal.SIGSTOP)
    second = host.start(TELLS)
    try:
        assert second.wait(30) == 0
        assert host.ran(1)[0] == second.pid  # The nursling has become the program.
    finally:
        os.kill(nursery, signal.SIGCONT)
    assert host.start(TELLS + "raise SystemExit(7)").wait(60) == 7
    assert host.ran(2)[1] == nursery  # The nursery has answered the request before.
    assert host.log(1).count("RAN") == 1, host.log(1)


def test_mindspore_a_process_that_became_another_program_is_waited_for(host: Host) -> None:
    shell = "import os\nos.execv('/bin/sh', ['sh', '-c', 'read word < fifo'])\n"
    os.mkfifo(host.folder / "fifo")
    nursling = host.start(TELLS + shell)
    worker, nursery = host.ran(0)
    command = Path(f"/proc/{worker}/cmdline")
    assert until(lambda: command.read_bytes().startswith(b"sh\0"), 30)
    os.kill(nursery, signal.SIGKILL)
    assert is_gone(nursery)
    with pytest.raises(subprocess.TimeoutExpired):
        nursling.wait(0.5)
    (host.folder / "fifo").write_text("end\n")
    assert nursling.wait(30) == 1  # Its exit code is not known.


def test_mindspore_a_nursery_does_not_outlive_its_agent_by_an_import(host: Host) -> None:
    lasting = "import os\nopen('importing', 'w').write(f'{os.getpid()}\\n')\nwhile True:\n"
    lasting += "    try:\n        import nowhere\n    except ImportError:\n        pass\n"
    (host.folder / "mindspore.py").write_text(lasting)
    nursling = host.start(TELLS, python=sys.executable)
    importing = host.folder / "importing"
    assert until(lambda: importing.exists() and importing.read_text().endswith("\n"), 60)
    nursling.kill()
    host.agent.kill()
    host.agent.wait()
    assert is_gone(int(importing.read_text()))
