#!/usr/bin/env python3
"""Hosts of namespaces are hosts: see each other alone, are lost silently, and leave nothing.

tools/hosts_test.py   needs CAP_SYS_ADMIN, CAP_NET_ADMIN and iproute2. Without them it fails, unless
                      HOLDFAST_TEST_WITHOUT_HOSTS=1 says that this is known here
"""
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS))
from fleet import Fleet, HostsError, linux  # noqa: E402

LIMIT_S = 60  # Only a hang takes so long.
# A command on a host that does what each line of its input says, and answers each with a line.
HAND = """
import os, socket, sys
PORT = 7000
mail = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); mail.bind(("", PORT))
door = socket.create_server(("", PORT))
peer = None
print("ready", flush=True)
for line in sys.stdin:
    verb, *more = line.split()
    try:
        if verb == "send": mail.sendto(more[1].encode(), (more[0], PORT)); said = "sent"
        elif verb == "receive": said = mail.recv(100).decode()
        elif verb == "connect": peer = socket.create_connection((more[0], int(more[1]) if more[1:] else PORT), 10); said = "connected"
        elif verb == "accept": peer = door.accept()[0]; said = "accepted"
        elif verb == "hear":  # What the peer lets us hear within a second, and the state of the connection.
            peer.settimeout(1)
            try: heard = repr(peer.recv(1))
            except TimeoutError: heard = "nothing"
            said = heard + " " + str(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
    except OSError as error: said = type(error).__name__ + " " + str(error)
    print(said, flush=True)
"""
ESTABLISHED = 1


def setUpModule():
    why = linux.lacking()
    if why and os.environ.get("HOLDFAST_TEST_WITHOUT_HOSTS") == "1":
        raise unittest.SkipTest(why)
    if why:
        raise HostsError(f"no hosts can be had here, so nothing was tested: {why}. HOLDFAST_TEST_WITHOUT_HOSTS=1 leaves this test out")
    folder = tempfile.mkdtemp(prefix="hosts-test-")
    unittest.addModuleCleanup(shutil.rmtree, folder)
    os.environ["XDG_RUNTIME_DIR"] = folder


def links():
    return sorted(name for _, name in socket.if_nameindex())


def mounts():
    return Path("/proc/self/mountinfo").read_text()


def spaces(*pids):
    return set().union(*map(linux.spaces_of, pids)) - linux.spaces_of("self")


def processes_in(inodes):
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            if inodes & linux.spaces_of(pid) and linux.runs(pid):
                found.append(pid)
    return found


def await_end(pidfd):
    """Waits for the end of a process that need not be a child of this one."""
    if not select.select([pidfd], [], [], LIMIT_S)[0]:
        raise AssertionError(f"the process did not end within {LIMIT_S} s")


def end(pidfd):
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def tool(*words, cwd="/", **options):  # The folder of this test may lie in /tmp, of which hosts have their own.
    return subprocess.run([TOOLS / "hosts", *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=cwd, **options)


class Hand:
    """A process on a host that runs HAND."""

    def __init__(self, test, fleet, host):
        self.process = fleet.popen(host, [sys.executable, "-c", HAND], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)

    def ask(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def answer(self):
        if not select.select([self.process.stdout], [], [], LIMIT_S)[0]:
            raise AssertionError(f"no answer within {LIMIT_S} s")
        return self.process.stdout.readline().strip()

    def do(self, words):
        self.ask(words)
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


def hands(test, fleet, hosts):
    started = [Hand(test, fleet, host) for host in hosts]
    for hand in started:
        test.assertEqual(hand.answer(), "ready")  # Otherwise the first message finds no socket.
    return started


class Three(unittest.TestCase):
    """Three hosts and a hand on each, fresh for every test."""

    def setUp(self):
        self.fleet = Fleet.up(3)
        self.addCleanup(self.fleet.down)
        self.hands = hands(self, self.fleet, range(3))

    def says(self, host, *command):
        return self.fleet.run(host, command, cwd="/", capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout.strip()

    def passes(self, sender, receiver, text):
        """Sends a text; returns whether it is the next that the receiver gets. Earlier texts that were not dropped would come first."""
        self.assertEqual(self.hands[sender].do(f"send {self.fleet.address(receiver)} {text}"), "sent")
        return self.hands[receiver].do("receive") == text

    def connect(self, client, server):
        self.hands[server].ask("accept")
        self.assertEqual(self.hands[client].do(f"connect {self.fleet.address(server)}"), "connected")
        self.assertEqual(self.hands[server].answer(), "accepted")

    def hears(self, host):
        heard, state = self.hands[host].do("hear").rsplit(" ", 1)
        return heard, int(state)


class Apart(Three):
    def test_names_addresses_and_processes_of_their_own(self):
        for host in range(3):
            self.assertEqual(self.says(host, "hostname"), f"host{host}")
            self.assertIn(f" {self.fleet.address(host)}/24 ", self.says(host, "ip", "-4", "addr", "show", "eth0"))
            pids = [int(name) for name in self.says(host, "ls", "/proc").split() if name.isdigit()]
            self.assertIn(1, pids)
            self.assertLessEqual(len(pids), 4, "its first, a hand, ls, and no process of another")

    def test_memory_and_temporary_files_of_their_own(self):
        name = f"of-host0-{os.getpid()}"
        for folder in ("/dev/shm", "/tmp"):
            self.says(0, "touch", f"{folder}/{name}")
            self.assertEqual(self.says(0, "ls", folder), name)
            self.assertEqual(self.says(1, "ls", folder), "")
            self.assertFalse(Path(folder, name).exists())

    def test_hosts_hear_each_other(self):
        for sender, receiver in ((0, 1), (1, 2), (2, 0)):
            self.assertTrue(self.passes(sender, receiver, f"{sender}-{receiver}"))
            self.connect(sender, receiver)
        self.assertEqual(self.hands[0].do(f"connect {self.fleet.address6(1)}"), "ConnectionRefusedError [Errno 111] Connection refused",
                         "the door is IPv4's, and who refuses has been reached")
        self.hands[2].ask("accept")
        self.assertEqual(self.hands[0].do("connect host2"), "connected")

    def test_hosts_do_not_hear_the_machine(self):
        self.assertNotIn("bridge0", links())
        with socket.create_server(("", 0)) as door:
            port = door.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), LIMIT_S).close()  # The port is open on this machine.
            self.assertIn("Connection refused", self.hands[0].do(f"connect 127.0.0.1 {port}"), "a loopback is its host's own")
        self.assertIn("Network is unreachable", self.hands[0].do("connect 192.0.2.1"))

    def test_a_fleet_beside_another(self):
        with Fleet.up(2, "another") as other:
            self.assertRaisesRegex(HostsError, "a fleet 'another' is up", Fleet.up, 1, "another")
            others = hands(self, other, range(2))
            self.assertEqual(others[0].do(f"send {other.address(1)} other"), "sent")
            self.assertTrue(self.passes(0, 1, "ours"))  # To the same address.
            self.assertEqual(others[1].do("receive"), "other")
        self.assertTrue(self.passes(0, 1, "still"))


class Lost(Three):
    def test_a_process_that_is_killed_is_heard(self):
        """Shows that the next test could fail."""
        self.connect(0, 1)
        self.hands[1].process.kill()
        self.assertNotEqual(self.hears(0)[0], "nothing")

    def test_a_lost_host_is_heard_by_nobody(self):
        self.connect(0, 1)
        self.fleet.kill(1)
        self.assertEqual(self.hands[1].process.wait(LIMIT_S), -signal.SIGKILL)
        self.assertEqual(self.hears(0), ("nothing", ESTABLISHED))
        self.assertRaisesRegex(HostsError, "host1 is lost; up-again", self.fleet.run, 1, ["true"], cwd="/")
        self.assertTrue(self.passes(0, 2, "others"))

    def test_a_host_comes_again(self):
        self.assertTrue(self.passes(0, 1, "before"))
        self.says(1, "touch", "/dev/shm/before")
        self.assertRaisesRegex(HostsError, "host1 is up", self.fleet.up_again, 1)
        for _ in range(3):
            self.fleet.kill(1)
            self.fleet.up_again(1)
        self.assertEqual(self.says(1, "hostname"), "host1")
        self.assertEqual(self.says(1, "ls", "/dev/shm"), "")
        self.hands[1:2] = hands(self, self.fleet, [1])
        self.connect(1, 0)
        self.assertTrue(self.passes(0, 1, "after"))

    def test_a_host_whose_first_process_ends_is_lost(self):
        os.kill(self.fleet.status()["hosts"][1]["pid"], signal.SIGKILL)
        self.assertEqual(self.hands[1].process.wait(LIMIT_S), -signal.SIGKILL)
        self.hands[1].end()
        until = time.monotonic() + LIMIT_S
        while self.fleet.status()["hosts"][1]["pid"] != 0:
            self.assertLess(time.monotonic(), until, "the keeper did not notice")
        self.fleet.up_again(1)
        self.assertEqual(self.says(1, "hostname"), "host1")


class Cut(Three):
    def test_one_direction(self):
        self.assertTrue(self.passes(0, 1, "a") and self.passes(1, 0, "b"))
        self.fleet.cut(0, 1, one_way=True)
        self.assertEqual(self.hands[0].do(f"send {self.fleet.address(1)} dropped"), "sent")
        self.assertTrue(self.passes(1, 0, "c"))
        self.assertTrue(self.passes(0, 2, "d") and self.passes(2, 1, "e"))
        self.assertEqual(self.fleet.status()["cuts"], [[0, 1]])
        self.fleet.heal(0, 1)
        self.assertTrue(self.passes(0, 1, "f"), "and not what was dropped")

    def test_a_connection_outlives_a_cut_host(self):
        self.connect(0, 1)
        self.fleet.cut(1)
        self.assertEqual(self.fleet.status()["cuts"], [[0, 1], [1, 0], [1, 2], [2, 1]])
        self.hands[1].end()  # No host hears of its end until the cut is healed.
        self.assertEqual(self.hears(0), ("nothing", ESTABLISHED))
        self.fleet.heal()
        self.assertTrue(self.passes(0, 2, "a"))
        for _ in range(LIMIT_S):  # TCP retries after a while.
            if self.hears(0)[0] != "nothing":
                return
        self.fail("the end was not heard after heal")

    def test_a_cut_holds_for_who_comes_again(self):
        self.assertTrue(self.passes(0, 1, "a"))
        self.fleet.cut(0, 1, one_way=True)
        self.fleet.kill(1)
        self.fleet.up_again(1)
        self.hands[1:2] = hands(self, self.fleet, [1])
        self.assertEqual(self.hands[0].do(f"send {self.fleet.address(1)} dropped"), "sent")
        self.assertTrue(self.passes(2, 1, "b"))
        self.fleet.heal()
        self.assertTrue(self.passes(0, 1, "c"))

    def test_what_cannot_be_cut(self):
        self.assertRaisesRegex(HostsError, "host1 and host1 are one host", self.fleet.cut, 1, 1)
        self.assertRaisesRegex(HostsError, "no host7: this fleet has host0 to host2", self.fleet.cut, 0, 7)

    def test_rate_and_delay(self):
        self.fleet.rate(1, "10mbit")
        self.assertIn("tbf", self.says(1, "tc", "qdisc", "show", "dev", "eth0"))
        self.assertIn("rate 10Mbit", self.says(1, "tc", "qdisc", "show", "dev", "eth0"))
        self.assertTrue(self.passes(0, 1, "a") and self.passes(1, 0, "b"))
        self.fleet.rate(1, "")
        self.assertNotIn("tbf", self.says(1, "tc", "qdisc", "show", "dev", "eth0"))
        try:
            self.fleet.delay(1, "5ms")
        except HostsError as error:
            self.assertIn("CONFIG_NET_SCH_NETEM", str(error))
        else:
            self.assertIn("delay 5ms", self.says(1, "tc", "qdisc", "show", "dev", "eth0"))
        self.assertTrue(self.passes(0, 1, "c"))


class Ends(unittest.TestCase):
    """The end of a fleet, seen by its processes and not by namespaces: their inode numbers are soon used again."""

    def setUp(self):
        self.before = links(), mounts()

    def watched(self, fleet, hands):
        """pidfds of all processes in namespaces of the fleet, the keeper first: these alone hold the namespaces."""
        status = fleet.status()
        inodes = spaces(status["keeper"], *(each["pid"] for each in status["hosts"]))
        hosts = len(status["hosts"])
        self.assertEqual(len(inodes), hosts * len(linux.KINDS) + 1)
        pids = [status["keeper"], *(pid for pid in processes_in(inodes) if pid != status["keeper"])]
        self.assertEqual(len(pids), 1 + hosts + hands)
        pidfds = [os.pidfd_open(pid) for pid in pids]
        for pidfd in pidfds:
            self.addCleanup(end, pidfd)  # Ends what outlived a failed test.
        return pids, pidfds

    def nothing_is_left(self, pidfds):
        for pidfd in pidfds:
            await_end(pidfd)
        self.assertEqual((links(), mounts()), self.before)
        self.assertEqual(list(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir()), [])

    def test_down_leaves_nothing(self):
        fleet = Fleet.up(3)
        started = [fleet.popen(host, ["sleep", "1000"], cwd="/") for host in range(3)]
        _, pidfds = self.watched(fleet, 3)
        fleet.down()
        self.assertEqual([each.returncode for each in started], [-signal.SIGKILL] * 3)
        self.nothing_is_left(pidfds)

    def test_it_ends_with_its_owner(self):
        program = f"import sys; sys.path.insert(0, {str(TOOLS)!r})\nfrom fleet import Fleet\nfleet = Fleet.up(2, 'owned')\n" \
                  "fleet.popen(0, ['sleep', '1000'], cwd='/')\nprint('up', flush=True)\nsys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
            self.assertEqual(owner.stdout.readline(), "up\n")
            _, pidfds = self.watched(Fleet("owned"), 1)
            owner.kill()
        self.nothing_is_left(pidfds)

    def test_it_ends_with_its_keeper(self):
        self.assertEqual(tool("up", 2).returncode, 0)
        pids, pidfds = self.watched(Fleet(), 0)
        os.kill(pids[0], signal.SIGKILL)
        for pidfd in pidfds:
            await_end(pidfd)
        self.assertIn("no fleet 'default' is up", tool("down").stderr)
        self.nothing_is_left(pidfds)


class Tool(unittest.TestCase):
    def setUp(self):
        self.assertEqual(tool("up", 2, "--owner", os.getpid()).returncode, 0)
        self.addCleanup(tool, "down")

    def test_run_passes_input_output_and_exit_code(self):
        done = tool("run", "host1", "--", "sh", "-c", "cat; hostname; echo oops >&2; exit 7", input="in\n")
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("in\nhost1\n", "oops\n", 7))
        self.assertEqual(tool("run", 0, "--", "sh", "-c", "kill -9 $$").returncode, 128 + 9)

    def test_run_passes_signals_and_dies_together(self):
        words = [TOOLS / "hosts", "run", "0", "--", "sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done"]
        for number, code in ((signal.SIGTERM, 3), (signal.SIGKILL, -9)):
            with subprocess.Popen(words, cwd="/", stdout=subprocess.PIPE, text=True) as running:
                self.assertEqual(running.stdout.readline(), "up\n")
                running.send_signal(number)
                self.assertEqual(running.wait(LIMIT_S), code)
                self.assertEqual(running.stdout.read(), "")  # The command has ended too, since its output is closed.

    def test_verbs(self):
        self.assertEqual(tool("cut", "--from", "host0", "--to", 1).returncode, 0)
        self.assertIn("cut: from host0 to host1", tool("status").stdout)
        self.assertEqual(tool("heal").returncode, 0)
        self.assertEqual(tool("kill", "host1").returncode, 0)
        self.assertRegex(tool("status").stdout, "host1 .* lost")
        self.assertEqual(tool("up-again", "host1").returncode, 0)
        self.assertNotRegex(tool("status").stdout, "cut|lost")

    def test_errors_are_sentences(self):
        for words, code, says in ((("up", 2), 1, "a fleet 'default' is up"), (("run", 5, "--", "true"), 125, "there is no host5"),
                                  (("run", 0, "--", "no-such"), 125, "cannot run no-such"), (("cut",), 1, "cut whom"),
                                  (("kill", 0, "--name", "none"), 1, "no fleet 'none' is up"), (("up", 0, "--name", "b"), 1, "1 to 64"),
                                  (("up", 1, "--name", "b", "--share", "/no/such"), 1, "/no/such is no folder")):
            done = tool(*words)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(says, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            self.assertIn("/tmp and /dev/shm are its own", tool("run", 0, "--", "true", cwd=folder).stderr)

    def test_a_shared_folder(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder, Fleet.up(2, shared=[folder]) as fleet:
            fleet.run(0, ["sh", "-c", "hostname > who"], cwd=folder, check=True)
            self.assertEqual(fleet.run(1, ["cat", "who"], cwd=folder, capture_output=True, text=True).stdout, "host0\n")
            self.assertEqual(Path(folder, "who").read_text(), "host0\n")

    def test_without_a_capability(self):
        for capability in ("sys_admin", "net_admin"):
            done = subprocess.run(["setpriv", f"--bounding-set=-{capability}", TOOLS / "hosts", "up", "1", "--name", "b"],
                                  capture_output=True, text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"lacks CAP_{capability.upper()} .*run it as root; in a container")


if __name__ == "__main__":
    unittest.main()
