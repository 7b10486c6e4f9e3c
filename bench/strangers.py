#!/usr/bin/env python3
"""What a training job pays for strangers at its scheduler's port: step time, memory, and lines in the log.

bench/strangers.py --bin build/release/bin --data build/digits [--workers 2 1] [--rounds 5] [--seconds 5]
                   [--rate 500] [--open 2000]

mnist (784-512-512-10, momentum, batch 16) trains alone; then beside each kind of stranger, once aimed at the scheduler
and once at a bare sink, which accepts, reads, and closes a connection at its first bytes. Strangers take processor
time themselves, on the same cores. So what counts is the ratio of these two: `to control`, the median over the rounds,
with the least and the most. `come` is how many strangers came in a second, and `of a core` is the percentage that they
take: at the scheduler and at the sink. Where these differ much, the ratio says little. `scheduler` is the percentage of
a core that it takes, and `grows` is the most memory that it held beside them over what it held before the first
stranger (MB). The last line of a job is how often its log said that it sent somebody away, and for how many reasons.
The kinds:

    half-open      --open connections that say nothing. They are replaced in turn, by --rate
    random bytes   200 of them
    frames         valid ones before the handshake, and in its midst
    proven frames  valid ones of a process of the job's user, after the handshake, but before it has registered
    handshakes     the words of a handshake, with a wrong proof
    TLS            the first word of a TLS handshake, at a job under TLS
    openings       the words of a handshake with a wrong opening, at a job under TLS

--rate: how many come in a second, beside the first half-open ones; 0: as many as one process can send, 64 at a time.
Prints one table for each number of workers. The bar: ratios of at most 1.10, at most 64 MB, each reason said once a minute.
Fails if the scheduler's log lacks a reason for which a kind was to be sent away: then it came to something else.
"""
import argparse
import asyncio
import ctypes
import hmac
import itertools
import os
import random
import re
import resource
import selectors
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from cluster import under_tls  # noqa: E402
from job import Job, die_with_parent  # noqa: E402

# By whether the job is under TLS: each kind, with the reason that the scheduler's log has to give.
KINDS = {
    False: {"half-open": "it has proven nothing",
            "random bytes": "it is of another release of Holdfast, or none",
            "frames": "it is nothing that a job has",
            "proven frames": "a connection of kind 'worker' may not say Got",
            "handshakes": "it has another token or is of another job"},
    True: {"half-open": "it has proven nothing",
           "TLS": "it begins with TLS",
           "openings": "it has another token or is of another job"},
}
AT_ONCE = 64  # Connections at once without a rate. With a rate: twice as many as come in a second, so a slow answer delays no other.
PATIENCE = 1.0  # Seconds for an answer.
WARM_UP = 1.0  # Seconds in which strangers come before a window.
BEFORE_REGISTER = (8, 9, 11, 17, 21)  # Kinds of frames whose body may be empty: Repaired, Progress, Finished, Heartbeat, Got.


# ---- The strangers ---------------------------------------------------------------------------------


def frame(kind):
    """A frame with an empty body (docs/formats/frames.md)."""
    digest = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    digest.restype, digest.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64)
    return b"HFW1" + bytes([1, kind, 0, 0]) + bytes(4) + (digest(b"", 0, kind) & 0xFFFFFFFF).to_bytes(4, "little")


def proof(token, job, client, server):
    """A worker's proof in the clear (docs/formats/handshake.md). Its key is one block of HKDF-SHA-256 of the token."""
    key = hmac.digest(hmac.digest(bytes(32), token, "sha256"), b"holdfast 2: client\1", "sha256")
    name, binding, worker = job.encode(), bytes(4), b"\0"
    return hmac.digest(key, len(name).to_bytes(4, "little") + name + binding + worker + client + server, "sha256")


def client_hello():
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a peer")


def conversations(kind, job, token):
    """For each stranger a generator that yields what the stranger sends, and is sent each answer."""
    hello = client_hello()
    frames = [frame(number) for number in BEFORE_REGISTER]

    def silent():
        yield b""

    def says(text):
        yield text

    def handshake(form, word_of):
        nonce = os.urandom(32)
        challenge = yield b"HFL2" + form + nonce
        yield word_of(nonce, challenge[1:])

    def wrong(*_):
        return b"\0" + os.urandom(32)

    for number in itertools.count():
        one = frames[number % len(frames)]
        if kind == "half-open":
            yield silent()
        elif kind == "random bytes":
            yield says(random.randbytes(200))
        elif kind == "TLS":
            yield says(hello)
        elif kind == "handshakes":
            yield handshake(b"c", wrong)
        elif kind == "openings":
            yield handshake(b"t", wrong)
        elif kind == "proven frames":
            yield handshake(b"c", lambda client, server, one=one: b"\0" + proof(token, job, client, server) + one)
        else:
            yield says(one) if number % 2 else handshake(b"c", lambda *_, one=one: one + bytes(33 - len(one)))


class Strangers:
    def __init__(self, options):
        self.address, self.rate, self.is_half_open = ("127.0.0.1", options.port), options.rate, options.be == "half-open"
        # A half-open connection that was not closed makes room for the next one, so that as many come to the sink.
        self.patience = PATIENCE if not self.is_half_open else options.open / options.rate if options.rate else 0.25
        self.conversations = conversations(options.be, options.job, options.token and Path(options.token).read_bytes().strip())
        self.open, self.came, self.under_way, self.began = options.open, 0, 0, time.monotonic()

    async def come(self):
        loop = asyncio.get_running_loop()
        self.under_way += 1
        try:
            with socket.socket() as connection:
                connection.setblocking(False)
                await asyncio.wait_for(loop.sock_connect(connection, self.address), self.patience)
                self.came += 1
                first = self.is_half_open and self.came <= self.open  # The first ones come at once, and go one by one.
                patience = self.patience * (self.came / self.open if first else 1)
                conversation, heard = next(self.conversations), None
                while True:
                    await loop.sock_sendall(connection, conversation.send(heard))
                    heard = await asyncio.wait_for(loop.sock_recv(connection, 4096), patience)
                    if not heard:
                        return
        except (OSError, asyncio.TimeoutError, StopIteration):
            pass
        finally:
            self.under_way -= 1

    async def go_on(self):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.end)
        kept, due, last = set(), float(self.open if self.is_half_open else 0), time.monotonic()
        most = self.open if self.is_half_open else 2 * self.rate or AT_ONCE
        while True:
            now = time.monotonic()
            due, last = min(due + self.rate * (now - last), max(self.open, self.rate)), now
            if not self.rate:
                due = float(most)
            while due >= 1 and self.under_way < most:
                task = asyncio.create_task(self.come())
                kept.add(task)
                task.add_done_callback(kept.discard)
                due -= 1
                await asyncio.sleep(0)
            await asyncio.sleep(0.002)

    def end(self):
        print(self.came - (self.open if self.is_half_open else 0), time.monotonic() - self.began, flush=True)
        os._exit(0)


def sink():
    """Accepts connections, and closes each at its first bytes."""
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    server.setblocking(False)
    print(server.getsockname()[1], flush=True)
    look = selectors.DefaultSelector()
    look.register(server, selectors.EVENT_READ)
    while True:
        for key, _ in look.select():
            if key.fileobj is server:
                try:
                    connection = server.accept()[0]
                except OSError:
                    continue
                connection.setblocking(False)
                look.register(connection, selectors.EVENT_READ)
            else:
                try:
                    key.fileobj.recv(4096)
                except OSError:
                    pass
                look.unregister(key.fileobj)
                key.fileobj.close()


# ---- The job beside them ---------------------------------------------------------------------------


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(*words):
    return subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)


class Measured:
    """A job that trains, and measurements of it."""

    def __init__(self, job, tls):
        self.job, self.tls = job, tls
        job.until(lambda t: t.newest_step() >= 50, what="the first steps", every=0.1)
        self.scheduler = job.trace.scheduler_pid()
        self.port = int(next(word for word in job.process.args if word.startswith("--master_port=")).partition("=")[2])
        self.token = "" if tls else f"/dev/shm/holdfast-{os.getuid()}/{job.name}/token"
        self.before, self.found, self.began = self.memory(), {}, time.monotonic()

    def memory(self):
        text = Path(f"/proc/{self.scheduler}/statm").read_text()
        return int(text.split()[1]) * resource.getpagesize() / 1e6

    def refusals(self):
        """The reasons for refusals in the log, one for each line."""
        text = (self.job.folder / "log" / "scheduler.log").read_text(errors="replace")
        return re.findall(r"scheduler: refused(?: the connection of \S+)?: (.*?)(?: \(and of .*)?$", text, re.MULTILINE)

    def window(self, seconds):
        """Measures for some seconds: median of rank 0's steps in ms; the scheduler's most memory, and its share of a core."""
        begin, most = time.clock_gettime_ns(time.CLOCK_MONOTONIC), 0.0
        used = processor_seconds(self.scheduler)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            most = max(most, self.memory())
        self.job.trace.poll()
        times = sorted(e["t_ns"] for e in self.job.trace.events("step") if e["rank"] == 0 and e["t_ns"] >= begin)
        if len(times) < 10 or self.job.process.poll() is not None:
            sys.exit(f"the job made {len(times)} steps in {seconds} s\n{self.job.text()}")
        self.job.trace.lines = [e for e in self.job.trace.lines if e["event"] != "step"]
        share = 100 * (processor_seconds(self.scheduler) - used) / seconds
        return statistics.median(b - a for a, b in zip(times, times[1:])) / 1e6, most, share

    def beside(self, kind, port, options):
        strangers = start("--be", kind, "--port", port, "--rate", options.rate, "--open", options.open, "--job", self.job.name,
                          "--token", self.token)
        time.sleep(WARM_UP)
        used = processor_seconds(strangers.pid)
        found = self.window(options.seconds)
        share = 100 * (processor_seconds(strangers.pid) - used) / options.seconds
        strangers.terminate()
        came, elapsed = map(float, strangers.communicate()[0].split())
        return *found, share, came / elapsed

    def round(self, number, control, options):
        self.found.setdefault("alone", []).append(self.window(options.seconds)[0])
        for kind in KINDS[self.tls]:
            pair = {}
            for port in (self.port, control) if number % 2 == 0 else (control, self.port):
                pair[port] = self.beside(kind, port, options)
            self.found.setdefault(kind, []).append((pair[self.port], pair[control]))

    def report(self, workers):
        where = f"{workers} worker(s), {'under TLS' if self.tls else 'in the clear'}"
        print(f"{where + ': alone':44} {statistics.median(self.found.pop('alone')):8.3f}")
        for kind, rounds in self.found.items():
            aimed, control = ([statistics.median(column) for column in zip(*side)] for side in zip(*rounds))
            ratios = [one[0] / other[0] for one, other in rounds]
            grows = max(one[1] for one, _ in rounds) - self.before
            print(f"{where + ': ' + kind:44} {aimed[0]:8.3f} {control[0]:8.3f}  {statistics.median(ratios):5.3f} "
                  f"({min(ratios):.3f}-{max(ratios):.3f}) {aimed[4]:5.0f} {control[4]:5.0f} {aimed[3]:6.1f} {control[3]:5.1f} "
                  f"{aimed[2]:9.1f} {grows:6.1f}", flush=True)
        said = self.refusals()
        for kind, reason in KINDS[self.tls].items():
            if not any(one.startswith(reason) for one in said):
                sys.exit(f"strangers.py: {where}: the scheduler was to refuse '{kind}' because '{reason}', and its log gives only: "
                         f"{', '.join(sorted(set(said))) or 'no reason'}. See that conversations() speaks as docs/formats/handshake.md has it")
        print(f"    the log has {len(said)} lines, for {len(set(said))} reasons, in {(time.monotonic() - self.began) / 60:.1f} minutes", flush=True)


def run(options, workers, tls, folder):
    path = Path(tempfile.mkdtemp(dir=folder))
    environment = {"OMP_NUM_THREADS": "1"}
    if tls:
        environment, config = under_tls(options.bin, path)
        environment = {**environment, "OMP_NUM_THREADS": "1", "HOLDFAST_TLS_CONFIG": str(config)}
    program = [options.bin / "mnist", "--data", options.data, "--epochs", 100000, "--steps", 100000000, "--batch", 16, "--seed", 3,
               "--optimizer", "momentum", "--model", "mlp"]
    control = start("--be", "sink")
    port = int(control.stdout.readline())
    try:
        with Job(options.bin, path, program, workers, env=environment) as job:
            measured = Measured(job, tls)
            for number in range(options.rounds):
                measured.round(number, port, options)
            measured.report(workers)
    finally:
        control.kill()
        control.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window in which steps are counted")
    parser.add_argument("--rate", type=int, default=500, help="strangers in a second; 0: as many as can be")
    parser.add_argument("--open", type=int, default=2000, help="how many half-open connections")
    for name, default in (("--be", ""), ("--port", 0), ("--job", ""), ("--token", "")):  # Only for processes that this one starts.
        parser.add_argument(name, type=type(default), default=default, help=argparse.SUPPRESS)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if options.be:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        sys.exit(sink() if options.be == "sink" else asyncio.run(Strangers(options).go_on()))
    if not options.bin or not options.data:
        parser.error("--bin and --data are needed")
    options.bin, options.data = options.bin.resolve(), options.data.resolve()
    print(f"{'ms per step (load ' + format(os.getloadavg()[0], '.1f') + ')':44} {'beside':>8} {'control':>8}  to control"
          f"          {'come':>11} {'of a core':>12} {'scheduler':>9} {'grows':>6}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        for workers, tls in itertools.product(options.workers, KINDS):
            run(options, workers, tls, Path(folder))


if __name__ == "__main__":
    main()
