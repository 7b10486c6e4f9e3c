"""Test set_ps_context(enable_ssl=True, ...): the same bits as in the clear, and its errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mindspore_job import HERE, LIMIT_S, NEEDS_MINDSPORE, Job, digests, free_port, make_data, until

from holdfast import cli

pytestmark = [NEEDS_MINDSPORE, pytest.mark.kill]
PROGRAM = str(HERE / "mindspore_secure.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "train")


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Make certificates; return the arguments of set_ps_context()."""
    folder = tmp_path_factory.mktemp("papers") / "tls"
    holdfast = [str(cli.programs() / "holdfast"), "tls", "new", str(folder)]
    subprocess.run(holdfast, check=True, capture_output=True)
    return {
        "config_file_path": str(folder / "config.json"),
        "client_password": (folder / "client.password").read_text().strip(),
        "server_password": (folder / "server.password").read_text().strip(),
    }


def write(folder: Path, config: dict[str, str]) -> Path:
    folder.mkdir()
    (folder / "channel.json").write_text(json.dumps(config))
    return folder


def run(folder: Path, data: Path, config: dict[str, str], **options: Any) -> Job:
    return Job(write(folder, config), data, [PROGRAM, "channel.json"], **options)


def speaks_tls(port: int) -> bool:
    """Return whether a scheduler demands TLS, by its answer in the clear (handshake.md)."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        raw.sendall(b"HFL2c" + bytes(32))
        return raw.recv(1) == b"t"


def scheduler_of(job: Job) -> int:
    """Return the pid of the job's scheduler; 0: there is none."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"MS_ROLE=MS_SCHED" in words and f"MS_SCHED_PORT={job.port}".encode() in words:
            return int(entry.name)
    return 0


def test_mindspore_secure_channel_outlives_its_scheduler_and_a_worker(
    tmp_path: Path, data: Path, channel: dict[str, str]
) -> None:
    run(tmp_path / "plain", data, {}).end()
    name = f"secure-{os.getpid()}"
    named = {"HOLDFAST_JOB": name}
    # A spare connects before it has run the script.
    secure = run(tmp_path / "secure", data, channel, variables=named, spares=1)
    try:
        assert until(lambda: secure.process.poll() is not None or secure.at(0)[1] >= 5)
        assert speaks_tls(secure.port)
        # This command has no setting for TLS.
        command = [str(cli.programs() / "holdfast"), "status", "--json", "--job", name]
        said = subprocess.run(command, check=False, capture_output=True, text=True)
        assert json.loads(said.stdout)["world_size"] == 2, said.stdout + said.stderr
        secure.kill_at(1, 5)
        assert until(lambda: secure.process.poll() is not None or secure.at(1)[1] >= 20)
        scheduler = scheduler_of(secure)
        assert scheduler and secure.process.poll() is None, secure.logs()
        os.kill(scheduler, signal.SIGKILL)
        output = secure.end()
    finally:
        secure.stop()
    assert "serves again" in secure.logs(), secure.logs()
    assert digests(tmp_path / "plain") == digests(tmp_path / "secure")
    for text in (output, secure.logs()):
        assert channel["client_password"] not in text
        assert channel["server_password"] not in text


def test_mindspore_secure_channel_by_ms_variables_alone(
    tmp_path: Path, data: Path, channel: dict[str, str]
) -> None:
    run(tmp_path / "plain", data, {}).end()
    folder, port = write(tmp_path / "shell", channel), free_port()
    script = f"""
export MS_WORKER_NUM=2 MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT={port}
eval "$({sys.executable} -m holdfast.mindspore env)"
for i in 0 1; do
  MS_ROLE=MS_WORKER MS_NODE_ID=$i {sys.executable} {PROGRAM} channel.json >worker_$i.log 2>&1 &
  workers="$workers $!"
done
MS_ROLE=MS_SCHED {sys.executable} {PROGRAM} channel.json >scheduler.log 2>&1 &
workers="$workers $!"
for process in $workers; do wait $process || exit 1; done
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3", "DATA_PATH": str(data)}
    command = ["timeout", "240", "bash", "-c", script]
    with subprocess.Popen(command, cwd=folder, env=environment) as shell:
        reached = until(lambda: shell.poll() is not None or (folder / "pid-0").exists())
        assert reached and shell.poll() is None
        assert speaks_tls(port)
        code = shell.wait()
    logs = "".join(path.read_text() for path in folder.glob("*.log"))
    assert code == 0, logs
    assert digests(tmp_path / "plain") == digests(folder)


def test_mindspore_secure_channel_names_what_is_wrong(
    tmp_path: Path, data: Path, channel: dict[str, str]
) -> None:
    missing = str(tmp_path / "nowhere.json")
    without = {name: text for name, text in channel.items() if name != "server_password"}
    for place, (config, words) in enumerate(
        [
            ({**channel, "client_password": "wrong"}, ("client.p12", "password")),
            ({**channel, "server_password": "wrong"}, ("server.p12", "password")),
            ({**channel, "config_file_path": missing}, (missing,)),
            (without, ("set_ps_context(enable_ssl=True)", "without server_password")),
            ({**channel, "passwort": "x"}, ("Set PS context keyword passwort is not recognized!",)),
        ]
    ):
        job = run(tmp_path / str(place), data, config, ranks=1, options=("--max_restarts=0",))
        try:
            job.end(code=None)
        finally:
            job.stop()
        assert job.process.returncode != 0
        said = job.logs()
        assert all(word in said for word in words), said
        assert not any(channel[name] in said for name in ("client_password", "server_password"))


def changed(tmp_path: Path, call: str) -> str:
    """Return the program with `call` in place of its call of set_ps_context()."""
    usual = "ms.set_ps_context(enable_ssl=bool(config), **config)\n"
    text = Path(PROGRAM).read_text()
    assert usual in text
    program = tmp_path / "program.py"
    program.write_text(text.replace(usual, call))
    return str(program)


def fail(tmp_path: Path, data: Path, program: str, config: dict[str, str]) -> tuple[str, str]:
    """Run a job that has to fail; return the logs of its scheduler and of its worker."""
    job = Job(
        write(tmp_path / "job", config),
        data,
        [program, "channel.json"],
        ranks=1,
        options=("--max_restarts=0",),
        variables={"HOLDFAST_SCHEDULER_TIMEOUT": "10"},
    )
    try:
        output = job.end(code=None)
    finally:
        job.stop()
    assert job.process.returncode != 0, output
    assert not list((tmp_path / "job").glob("pid-*")), "no step is made"
    logs = tmp_path / "job" / "logs"
    return (logs / "scheduler.log").read_text(), (logs / "worker_0.log").read_text()


@pytest.mark.parametrize("wrong", ["password", "name"])
def test_mindspore_secure_channel_that_failed_is_not_followed_by_the_clear(
    tmp_path: Path, data: Path, channel: dict[str, str], wrong: str
) -> None:
    passwords = {"client_password": "wrong", "server_password": "wrong"}
    config = {**channel, **(passwords if wrong == "password" else {"passwort": "x"})}
    call = (
        "try:\n    ms.set_ps_context(enable_ssl=True, **config)\n"
        "except Exception as error:\n    print('caught', error, flush=True)\n"
    )
    program = changed(tmp_path, call)
    said = "".join(fail(tmp_path, data, program, config))  # The first failure ends all.
    assert "serves job" not in said, said
    for role, file in (("MS_SCHED", "server.p12"), ("MS_WORKER", "client.p12")):
        script = f"""
export MS_WORKER_NUM=1 MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT={free_port()} MS_NODE_ID=0
eval "$({sys.executable} -m holdfast.mindspore env)"
MS_ROLE={role} timeout {LIMIT_S} {sys.executable} {program} channel.json 2>&1
"""
        command = ["bash", "-c", script]
        ended = subprocess.run(
            command, cwd=tmp_path / "job", check=False, capture_output=True, text=True
        )
        said = ended.stdout
        assert ended.returncode == 1 and "serves job" not in said, said
        assert "caught" in said and "set_ps_context(enable_ssl=True) failed" in said, said
        assert (file if wrong == "password" else "passwort") in said, said


def test_mindspore_secure_channel_of_a_module_is_named_where_the_scheduler_does_not_see_it(
    tmp_path: Path, data: Path, channel: dict[str, str]
) -> None:
    (tmp_path / "secure_channel.py").write_text(
        "import mindspore as ms\n\n\ndef put(config):\n"
        "    ms.set_ps_context(enable_ssl=True, **config)\n"
    )
    program = changed(tmp_path, "import secure_channel\nsecure_channel.put(config)\n")
    scheduler, worker = fail(tmp_path, data, program, channel)
    assert "serves job" in scheduler, scheduler
    # The worker may have connected in the clear by then, or not.
    late, early = "TLS is set too late", "it speaks no TLS, and this process does"
    assert late in worker or early in worker, worker
    assert early not in worker or "it speaks TLS, and this process does not" in scheduler, scheduler
    assert "was called in module secure_channel (" in worker, worker
    assert "set HOLDFAST_TLS_CONFIG" in worker, worker
