"""A disk that is full under the logs ends the logs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import resource, sys
from holdfast._output import outlive_a_full_disk
outlive_a_full_disk()
print("a word")
sys.stdout.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for _ in range(100):
    print("x" * 1000, flush=True)
    print("x" * 1000, file=sys.stderr)
with open(sys.argv[1], "w") as file:
    file.write("went on")
raise SystemExit(7)
"""


def with_log(descriptor: int) -> dict[str, str]:
    """Return an environment with the agent's variable that says which file is the log."""
    about = os.fstat(descriptor)
    return {**os.environ, "HOLDFAST_PYTHON_LOG": f"{about.st_dev}:{about.st_ino}"}


@pytest.mark.parametrize("options", [[], ["-u"]])
def test_core_what_is_printed_is_lost_and_the_program_goes_on(
    tmp_path: Path, options: list[str]
) -> None:
    went_on = tmp_path / "went-on"
    with open(tmp_path / "log", "ab") as log:
        done = subprocess.run(
            [sys.executable, *options, "-c", PRINTS, str(went_on)],
            stdout=log,
            stderr=log,
            env=with_log(log.fileno()),
            timeout=60,
        )
    assert done.returncode == 7
    assert went_on.read_text() == "went on"
    assert (tmp_path / "log").read_bytes()[:7] == b"a word\n"
    assert (tmp_path / "log").stat().st_size == 4096


def test_core_a_file_of_the_users_that_takes_no_more_is_an_error(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab") as log, open(tmp_path / "data", "ab") as data:
        done = subprocess.run(
            [sys.executable, "-c", PRINTS, str(tmp_path / "went-on")],
            stdout=data,
            stderr=subprocess.PIPE,
            env=with_log(log.fileno()),
            text=True,
            timeout=60,
        )
    assert done.returncode not in (0, 7)
    assert "File too large" in done.stderr
    assert not (tmp_path / "went-on").exists()


# As `holdfast run` starts it, but with its output redirected.
SAYS = """
import holdfast, sys
holdfast.init()
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, flush=True)
"""


def test_core_of_an_agents_process_only_the_log_is_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SAYS)
    run = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node=1", "--no-python"]
    done = subprocess.run(
        [*run, "sh", "-c", f"exec {sys.executable} program.py > data"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data").read_text() == "True False\n"


def test_core_what_is_no_file_is_left_as_it_is() -> None:
    text = (
        "import sys\nfrom holdfast._output import outlive_a_full_disk\nbefore = sys.stdout\n"
        "outlive_a_full_disk()\nassert sys.stdout is before"
    )
    assert subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE).returncode == 0


# Each line is a page: the first ones fill the disk.
TRAINS = """
import holdfast, os
open(f"process-{os.getpid()}", "w").close()
job = holdfast.init()
with job.open(private_bytes=8, own_private=True) as session:
    if session.fresh:
        session.private(0)[:] = bytes(8)
    session.join()
    while session.version < 200:
        session.begin_step()
        session.private(session.version + 1)[:] = bytes(8)
        session.end_step(holdfast.Step())
        print("x" * 4096, flush=True)
    session.end()
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"]).returncode != 0,
    reason="only who may mount can fill a disk of its own",
)
def test_core_a_job_goes_on_where_the_disk_of_its_logs_is_full(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "program.py").write_text(TRAINS)
    run = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node=2", "--log-dir=log"]
    mount = 'mount -t tmpfs -o size=100k tmpfs log && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", *run, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("process-*"))) == 2, "one was lost and replaced"
