"""Run a job for `holdfast run`: start msrun, show the ranks' output, restart all if need be.

If a process is lost before any rank has kept a state (hf.State, a session), it can not be replaced
alone: the others wait for it in Gloo, which accepts no successor. Then all processes are started
again, as torchrun does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from holdfast._follow import Follower
from holdfast._options import Run
from holdfast._stacks import name_py_spy
from holdfast._streams import ERR, OUT, prefix

_PACKAGE: Final = Path(__file__).resolve().parent
_PR_SET_PDEATHSIG: Final = 1
_LOOK_EVERY_S: Final = 1.0
# How a rank ended if it was by an exception: the exit code and the exception.
_EXCEPTION: Final = re.compile(r"exited with code (\d+) \((.*)\)")
# The last line of a process that one of Gloo's threads aborts (docs/reference/pytorch.md).
_ABORTS: Final = b"terminate called without an active exception"
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WORDS: Final = (signal.SIGUSR1, signal.SIGUSR2)  # Mostly for the processes.


def free_port() -> int:
    """Return a TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    """Write one line for the user."""
    with contextlib.suppress(OSError):
        print(f"holdfast: {text}", file=sys.stderr, flush=True)


class Launch:
    """A job, through all its rounds. Each round starts all processes."""

    def __init__(self, run: Run) -> None:
        """Hold the job to run."""
        self._run = run
        self._round = 0
        self._lost: int | None = None  # The rank because of which all start again.
        self._how = ""  # How that rank ended.
        self._aborting: set[int] = set()  # The ranks that have said _ABORTS in this round.
        self._token = b""  # Begins the log line that reports such a rank.
        self._broken = False  # Nobody reads our output.
        self._duplicated: set[Path] = set()
        self._signal = 0
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)

    def main(self) -> int:
        """Run the job; return its exit code."""
        code = self._make_rounds()
        if code:
            self._leave_error()
        return code

    def _leave_error(self) -> None:
        """Copy what torch's @record wrote of the first failure to where our own starter looks."""
        ranks = range(self._run.first, self._run.first + self._run.count)
        files = [self._folder() / f"error_{rank}.json" for rank in ranks]
        written = [path for path in files if path.exists()]
        if written and (wanted := os.environ.get("TORCHELASTIC_ERROR_FILE")):
            with contextlib.suppress(OSError):
                shutil.copyfile(min(written, key=lambda path: path.stat().st_mtime_ns), wanted)

    def _make_rounds(self) -> int:
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (*_ENDS, *_WORDS):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)  # The loop reads the number from _wake.
        for remark in self._run.remarks:
            say(remark)
        while True:
            before = _EXCEPTION.fullmatch(self._how)
            code = self._make_round()
            if self._signal or self._lost is None:
                return code
            if self._lost in self._aborting:
                say(
                    f"rank {self._lost}'s program may have been at its end: there a thread of "
                    f'torch\'s Gloo may abort it with "{_ABORTS.decode()}", under torchrun, too; '
                    "docs/reference/pytorch.md says what helps"
                )
            raised = _EXCEPTION.fullmatch(self._how)
            if self._run.nodes.several:
                return int(raised[1]) if raised else 1
            if raised and before and raised[2] == before[2]:
                say(
                    f"rank {self._lost} {self._how}; the last start of all ended with the same "
                    f"exception, so none is started again; logs are in {self._folder()}"
                )
                return int(raised[1])
            if self._round == self._run.max_restarts:
                times = "once" if self._round == 1 else f"{self._round} times"
                say(
                    f"rank {self._lost} {self._how} and nothing is kept (no hf.State); all were "
                    f"started again {times}, which --max-restarts allows; logs are in "
                    f"{self._folder()}"
                )
                return 1
            self._round += 1
            count = self._run.count
            who = f"all {count} processes are" if count > 1 else "the one process is"
            say(
                f"rank {self._lost} {self._how} and nothing is kept (no hf.State), so {who} started"
                f" again, as torchrun does: restart {self._round} of {self._run.max_restarts}"
            )
            if self._run.spares != "0" and self._round == 1:
                say(
                    f"--spares {self._run.spares} is of no use to this program: a spare can take "
                    "the place of a lost process only where something is kept (hf.State)"
                )

    def _ends_by(self, number: int) -> bool:
        """Whether the signal ends the job. SIGUSR1 does, if it makes a last snapshot then."""
        makes = any(option.startswith("--snapshot=") for option in self._run.snapshots)
        name = signal.Signals(number).name
        return (
            number in _ENDS
            or name in self._run.ending_signals
            or (makes and number == signal.SIGUSR1)
        )

    # ---- One round ------------------------------------------------------------------------------

    def _folder(self) -> Path:
        """Return the folder for the logs of this round."""
        return self._run.log_dir / f"restart_{self._round}" if self._round else self._run.log_dir

    def _continues(self) -> bool:
        return self._run.continues and self._round == 0

    def _arguments(self) -> list[str]:
        run = self._run
        self._token = f"holdfast: {secrets.token_hex(8)}".encode()
        return [
            str(_PACKAGE / "bin" / "msrun"),
            f"--worker_num={run.world_size}",
            f"--local_worker_num={','.join(run.said_sizes)}",
            f"--node_rank={run.nodes.rank}",
            f"--master_addr={run.nodes.address}",
            f"--master_port={run.sched_port or free_port()}",
            f"--log_dir={self._folder()}",
            "--join=True",
            "--as_torchrun",
            *(["--several"] if run.nodes.several else []),
            f"--spare_host={run.nodes.is_spare}",
            f"--oversubscribe={run.oversubscribe}",
            *(["--continue"] if self._continues() else []),
            f"--max_restarts={run.max_restarts}",
            f"--spares={run.spares}",
            *(["--strict_rehearsals"] if run.strict_rehearsals else []),
            *([f"--hang_timeout={run.hang_timeout}"] if run.hang_timeout else []),
            *([f"--server_num={run.servers}"] if run.servers else []),
            *(["--allow_inject"] if run.allow_inject else []),
            *(f"--{name[3:].lower()}_ends" for name in run.ending_signals),
            *run.snapshots,
            str(_PACKAGE / "_shim.sh"),
            sys.executable,
            str(self._round),
            self._token.decode(),
            *run.command,
        ]

    def _environment(self) -> dict[str, str]:
        run, size = self._run, str(self._run.world_size)
        environment = dict(os.environ)
        environment.update(
            WORLD_SIZE=size,
            LOCAL_WORLD_SIZE=str(run.count),
            GROUP_RANK=str(run.nodes.rank),
            GROUP_WORLD_SIZE=str(run.nodes.count),
            _HOLDFAST_SIZES=" ".join(run.said_sizes),
            ROLE_NAME=run.role,
            ROLE_WORLD_SIZE=size,
            MASTER_ADDR=run.master_addr,
            MASTER_PORT=str(run.master_port or free_port()),
            TORCHELASTIC_RUN_ID=run.run_id,
            TORCHELASTIC_MAX_RESTARTS=str(run.max_restarts),
            TORCHELASTIC_USE_AGENT_STORE="False",
            _HOLDFAST_ERRORS=str(self._folder().absolute()),
        )
        environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        if run.shutdown_timeout is not None:
            environment["HOLDFAST_SHUTDOWN_TIMEOUT"] = run.shutdown_timeout
        if run.streams.apart:
            environment["_HOLDFAST_APART"] = "goes on" if self._continues() else "begins"
        # As in torchrun: the processes share the cores.
        cores = len(os.sched_getaffinity(0))
        environment.setdefault("OMP_NUM_THREADS", "1" if run.count > 1 else str(cores))
        if "MS_TOPO_TIMEOUT" not in environment:
            # A program may never join the job. That must not end it.
            environment["MS_TOPO_TIMEOUT"] = "-1"
            environment.setdefault("HOLDFAST_SCHEDULER_TIMEOUT", "1800")
        name_py_spy(environment)
        return environment

    def _make_round(self) -> int:
        """Run msrun to its end; return its exit code."""
        self._lost = None
        self._aborting.clear()
        follower = Follower(
            self._folder(),
            self._write,
            goes_on=self._continues(),
            apart=self._run.streams.apart,
        )
        launcher = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)  # msrun gets the terminal's Ctrl-C only from this launcher.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)

        with subprocess.Popen(
            self._arguments(),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=prepare,
        ) as agent:
            self._follow(agent, follower)
            follower.close()
            code = agent.wait()
        return 128 - code if code < 0 else code

    def _follow(self, agent: subprocess.Popen[bytes], follower: Follower) -> None:
        """Show the output and pass signals on, until the agent has closed its output."""
        assert agent.stdout is not None
        os.set_blocking(agent.stdout.fileno(), False)
        with selectors.DefaultSelector() as selector:
            for source in (agent.stdout, follower, self._wake[0]):
                selector.register(source, selectors.EVENT_READ)
            ended = asked = False
            while not ended:
                patience = None if follower.is_told else _LOOK_EVERY_S
                ready = {key.fileobj for key, _ in selector.select(patience)}
                follower.show()
                if agent.stdout in ready:
                    ended = self._pass_on(agent.stdout.fileno())
                if self._wake[0] in ready:
                    for number in self._wake[0].recv(64):
                        if number in (*_ENDS, *_WORDS):
                            agent.send_signal(number)
                            self._signal = number if self._ends_by(number) else self._signal
                    _reap_all_but(agent.pid)
                if self._lost is not None and not asked:
                    self._say_the_end()
                    agent.terminate()
                    asked = True

    def _say_the_end(self) -> None:
        """Say why a job over several hosts ends: their launchers can not begin a round together."""
        if self._run.nodes.several:
            say(
                f"rank {self._lost} {self._how} and nothing is kept (no hf.State), so it can not "
                "be replaced alone; over several hosts all are not started again, so the job ends "
                f"on all of them; logs are in {self._folder()}"
            )

    def _pass_on(self, stream: int) -> bool:
        """Write the agent's output. True: the agent has ended."""
        with contextlib.suppress(BlockingIOError):
            while words := os.read(stream, 1 << 16):
                # On one host, the agent has nothing to say once it has to end for a lost rank.
                if self._lost is None or self._run.nodes.several:
                    text = words.replace(b"msrun: ", b"holdfast: ")
                    with contextlib.suppress(OSError):
                        _write_all(2, text)
            return True
        return False

    def _write(self, rank: int, line: bytes, stream: int) -> None:
        """Show a line of a rank's log, or note that the rank was lost."""
        run = self._run
        if line.strip() == _ABORTS:
            self._aborting.add(rank)
        if line.startswith(self._token):
            self._lost = rank
            how = line[len(self._token) :].decode(errors="replace").strip()
            self._how = how or "was lost"
        elif self._lost is None and run.streams.is_shown(rank, stream):
            before = prefix(run.role, rank, rank - run.first, alone=run.world_size == 1).encode()
            if run.streams.is_filtered(rank, stream, line.decode(errors="replace")):
                self._duplicate(stream, before + line)
            self._show(before + line, stream)

    def _show(self, line: bytes, stream: int) -> None:
        if self._broken:
            return
        try:
            _write_all(2 if stream == ERR else 1, line)
        except OSError as error:
            self._broken = True
            if not isinstance(error, BrokenPipeError):  # As with `| head`, which wants no more.
                say(
                    f"what the ranks say can not be shown any more ({error.strerror}); it is "
                    f"in the logs in {self._folder()}"
                )

    def _duplicate(self, stream: int, line: bytes) -> None:
        """Write a line that a filter wants into the file for such lines, which begins anew."""
        name = "filtered_stdout.log" if stream == OUT else "filtered_stderr.log"
        path = self._folder() / name
        with path.open("ab" if path in self._duplicated else "wb") as file:
            file.write(line)
        self._duplicated.add(path)


def _reap_all_but(child: int) -> None:
    """Reap processes whose parents died: those of a container become its first one's children."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)


def _write_all(stream: int, words: bytes) -> None:
    while words:
        try:
            words = words[os.write(stream, words) :]
        except BlockingIOError:  # Another process that has this stream made it non-blocking.
            select.select((), (stream,), ())
