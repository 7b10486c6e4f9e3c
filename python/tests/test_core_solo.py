"""A process that is a world of its own: state, steps, errors, types."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import textwrap
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import DType, Op


@pytest.fixture(scope="module")
def session() -> Iterator[holdfast.Session]:
    with holdfast.init().open([("w", 3), ("b", 40)], holdfast.Optimizer.SGD, 16) as opened:
        yield opened


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_core_the_calls_of_a_step_come_in_their_order(session: holdfast.Session) -> None:
    assert session.fresh and session.version == holdfast.NO_VERSION
    with pytest.raises(holdfast.UserError, match=r"hf_begin_step\(\) before hf_join\(\)"):
        session.begin_step()
    with pytest.raises(holdfast.MarkedError, match="no whole generation"):
        session.world.barrier()
    session.parameter(0)[:] = array("f", [1, 2, 3])
    session.private(0)[:] = b"0" * 16
    session.join(holdfast.Position(1, 2, 3))
    assert (session.version, session.position) == (0, holdfast.Position(1, 2, 3))
    with pytest.raises(holdfast.UserError, match="outside of a step"):
        session.end_step(holdfast.Step())
    with pytest.raises(holdfast.UserError, match="called before"):
        session.join()


def test_core_whose_own_beginning_is_needed_is_asked_for_it() -> None:
    code = """
import holdfast
with holdfast.init().open([("w", 3)], private_bytes=4) as session:
    asked = 0
    while session.meet(holdfast.Position(1, 2, 3)):
        asked += 1
        assert session.fresh
        session.parameter(0)[:] = memoryview(b"\\0\\0\\x80?" * 3).cast("f")
        session.private(0)[:] = b"mine"
    assert asked == 1
    assert (session.version, session.position) == (0, holdfast.Position(1, 2, 3))
    assert bytes(session.private(0)) == b"mine" and list(session.parameter(0)) == [1, 1, 1]
    assert not session.begin_step()
    try:
        session.meet()
    except holdfast.UserError as error:
        print(error)
"""
    done = run(code)
    assert "was called before" in done.stdout, done.stdout + done.stderr


def test_core_a_step_updates_the_parameters_and_keeps_private_bytes(
    session: holdfast.Session,
) -> None:
    before = session.version
    assert not session.begin_step()
    assert not session.marked
    session.gradient(0)[:] = array("f", [1, 1, 1])
    session.reduce(0, len(session.gradients()))
    session.private(before + 1)[:] = b"1" * 16
    assert not session.end_step(holdfast.Step(learning_rate=0.5))
    assert session.version == before + 1
    assert list(session.parameter(0)) == [0.5, 1.5, 2.5]
    assert bytes(session.private(session.version)) == b"1" * 16
    assert bytes(session.private(session.version + 1)) == b"0" * 16


def test_core_wrong_arguments_are_the_users_fault(session: holdfast.Session) -> None:
    with pytest.raises(holdfast.UserError, match="no parameter 2; the layout has 2"):
        session.parameter(2)
    with pytest.raises(holdfast.UserError, match="no moment 0; SGD without momentum has 0"):
        session.moment(0, 0)
    with pytest.raises(holdfast.UserError, match="no private bytes of version 99"):
        session.private(99)
    with pytest.raises(holdfast.UserError, match="no rank 1 in a world of 1"):
        session.group([0, 1], "both")
    with pytest.raises(holdfast.UserError, match="names a rank twice"):
        session.group([0, 0], "twice")
    with pytest.raises(holdfast.UserError, match="a group's name is"):
        session.group([0], "a/b")
    with pytest.raises(holdfast.UserError, match="has its session already"):
        holdfast.init().open(private_bytes=1)


def test_core_operations_that_mean_nothing_are_refused(session: holdfast.Session) -> None:
    session.begin_step()
    data = array("d", [1.0])
    with pytest.raises(holdfast.UserError, match="no bitwise xor of float64"):
        session.world.all_reduce(data, 1, DType.FLOAT64, Op.XOR)
    with pytest.raises(holdfast.UserError, match="no average of int32"):
        session.world.all_reduce(data, 1, DType.INT32, Op.AVERAGE)
    with pytest.raises(holdfast.UserError, match="must be another rank"):
        session.world.send(data, 8, 0)
    with pytest.raises(holdfast.UserError, match="a broadcast from rank 7"):
        session.world.broadcast(data, 8, 7)
    session.end_step(holdfast.Step())


def test_core_a_world_of_one_gets_its_own_numbers_back(session: holdfast.Session) -> None:
    session.begin_step()
    group = session.group([0], "me")
    for world in (session.world, group):
        data = array("f", [1.5, -2.0])
        for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, Op.AVERAGE):
            world.all_reduce(data, 2, DType.FLOAT32, op)
        assert list(data) == [1.5, -2.0]
        mine, everyone = array("q", [7]), array("q", [0])
        world.all_gather(mine, 8, everyone)
        assert everyone == mine
        work = world.start_reduce_scatter(mine, everyone, 1, DType.INT64)
        work.wait()
        assert work.poll() == holdfast.Status.OK
        world.all_to_all(mine, [8], everyone, [8])
        assert everyone == mine
    group.close()
    session.end_step(holdfast.Step())


@pytest.mark.parametrize(
    ("bits", "value"),
    [(0x3C00, 1.0), (0x0001, 2.0**-24), (0x7BFF, 65504.0), (0x8400, -(2.0**-14)), (0x3555, None)],
)
def test_core_float16_survives_a_fold(
    session: holdfast.Session, bits: int, value: float | None
) -> None:
    data = bytearray(struct.pack("<H", bits))
    session.begin_step()
    session.world.all_reduce(data, 1, DType.FLOAT16, Op.SUM)
    session.end_step(holdfast.Step())
    assert struct.unpack("<H", data)[0] == bits
    if value is not None:
        assert struct.unpack("<e", data)[0] == value


def test_core_views_need_no_copy(session: holdfast.Session) -> None:
    session.private(session.version + 1)[0] = 77
    assert session.private(session.version + 1)[0] == 77


def test_core_a_wrong_setting_is_named() -> None:
    done = run("import holdfast; holdfast.init()", HOLDFAST_UPDATE_THREADS="99")
    assert done.returncode == 1
    assert "UserError" in done.stderr and "HOLDFAST_UPDATE_THREADS" in done.stderr


def test_core_a_job_without_a_scheduler_is_told_after_the_timeout() -> None:
    done = run(
        "import holdfast; holdfast.init().rank",
        MS_ROLE="MS_WORKER",
        MS_WORKER_NUM="1",
        MS_SCHED_PORT="1",
        MS_NODE_ID="0",
        HOLDFAST_SCHEDULER_TIMEOUT="1",
    )
    assert done.returncode == 1
    assert "WorldError" in done.stderr and "no scheduler answers at 127.0.0.1:1" in done.stderr


def test_core_ctrl_c_ends_the_wait_for_the_rank() -> None:
    done = run(
        """
        import os, signal, threading, holdfast
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            holdfast.init().rank
        except KeyboardInterrupt:
            print("interrupted")
        """,
        MS_ROLE="MS_WORKER",
        MS_WORKER_NUM="1",
        MS_SCHED_PORT="1",
        MS_NODE_ID="0",
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_core_a_forked_child_is_refused_and_harms_nobody() -> None:
    done = run(
        """
        import os, holdfast
        job = holdfast.init()
        session = job.open(private_bytes=8)
        session.private(0)[:] = b"12345678"
        session.join()
        pid = os.fork()
        if pid == 0:
            try:
                holdfast.init()
            except holdfast.UserError as error:
                print(error, flush=True)
            raise SystemExit(0)
        os.waitpid(pid, 0)
        session.begin_step()
        session.end_step(holdfast.Step())
        session.end()
        print(os.path.isdir(job.place.directory))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("a forked process has no place")
    assert done.stdout.splitlines()[1] == "True"


def test_core_a_forked_child_may_end_as_it_likes(tmp_path: Path) -> None:
    lifeline = tmp_path / "lifeline"
    lifeline.touch()
    done = run(
        """
        import os, sys, threading, time, holdfast
        job = holdfast.init()
        for _ in range(12):  # So many stacks that the child gives some back.
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        for end in (lambda: None, job.worker.stop):
            pid = os.fork()
            if pid == 0:
                for _ in range(3):
                    thread = threading.Thread(target=lambda: None)
                    thread.start()
                    thread.join()
                end()
                sys.exit(0)
            print(os.waitpid(pid, 0)[1], flush=True)
        """,
        MS_ROLE="MS_WORKER",
        MS_WORKER_NUM="1",
        MS_SCHED_PORT="1",
        MS_NODE_ID="0",
        HOLDFAST_LIFELINE=str(lifeline),
    )
    assert (done.returncode, done.stdout) == (0, "0\n0\n"), done.stderr


def test_core_a_spare_registers_though_a_forked_child_has_stopped_its_worker(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as scheduler:
        done = run(
            """
            import os, holdfast
            reading, writing = os.pipe()
            os.environ["HOLDFAST_SPARE_FD"] = str(reading)
            job = holdfast.init()
            pid = os.fork()
            if pid == 0:
                job.worker.stop()
                os._exit(0)
            os.waitpid(pid, 0)
            os.write(writing, b"0 1\\n")
            try:
                job.rank
            except holdfast.Error as error:
                print(error)
            """,
            MS_ROLE="MS_WORKER",
            MS_WORKER_NUM="1",
            MS_SCHED_PORT=str(scheduler.getsockname()[1]),
            HOLDFAST_SCHEDULER_TIMEOUT="1",
            HOLDFAST_TOKEN_FILE=str(token),
        )
        scheduler.settimeout(0)
        scheduler.accept()  # The worker has connected.
    assert "no scheduler answers" in done.stdout, done.stderr


def test_core_an_exception_in_the_block_closes_without_ending() -> None:
    done = run(
        """
        import holdfast
        with holdfast.init().open(private_bytes=8) as session:
            session.private(0)[:] = b"12345678"
            session.join()
            raise ValueError("mine")
        """
    )
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ValueError: mine")


def test_core_the_import_needs_no_framework() -> None:
    done = run("import sys, holdfast; print(any(m in sys.modules for m in ('torch', 'numpy')))")
    assert done.stdout == "False\n", done.stderr


def folder_of(process: int) -> list[str]:
    mine = Path(f"/dev/shm/holdfast-{os.geteuid()}")
    return [path.name for path in mine.glob(f"solo-{process}-*")]


ENDS = """
import multiprocessing, os, sys
def life(how):
    import holdfast
    holdfast.init().open(private_bytes=16).join()
    print(os.getpid(), flush=True)
    if how == "raise":
        raise SystemExit(3)
    if how == "_exit":
        os._exit(0)
if __name__ == "__main__":
    how, method = sys.argv[1:]
    if method == "itself":
        life(how)
    else:
        process = multiprocessing.get_context(method).Process(target=life, args=(how,))
        process.start()
        process.join()
"""


@pytest.mark.parametrize("method", ["itself", "fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", ["return", "raise"])
def test_core_nothing_is_left_in_memory(tmp_path: Path, how: str, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(ENDS)
    words = [sys.executable, str(program), how, method]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150)
    assert folder_of(int(done.stdout)) == [], done.stderr


def test_core_what_an_exit_at_once_leaves_the_next_process_removes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ENDS)
    left = ""
    for how in ("_exit", "return"):
        words = [sys.executable, str(program), how, "itself"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=150)
        left = left or done.stdout
    assert folder_of(int(left)) == []
