#!/usr/bin/env python3
"""Tries examples/kubernetes without Kubernetes: the manifests against its schema, and the pods' own command in namespaces.

kubernetes_try.py --build BUILD [TEST...]   by hand, as root: what hosts need (docs/testing-hosts.md), kubectl, and for this
Python PyYAML and kubernetes-validate. HOLDFAST_PYTHON: the Python of a virtual environment with torch.

A pod is a host with an own root (an overlay), process 1, user, secrets, memory folders, /etc/hosts and resolver as the kubelet
makes them. A name server on a further host knows a pod's name when the test says so.
"""
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from common import RESULT, ROOT, fleet_of, write_training
from hosts_test import setUpModule  # noqa: F401

EXAMPLE = ROOT / "examples" / "kubernetes"
LIMIT_S = 150  # Only a hang takes so long.
PODS = 3
EACH = 2  # Processes in each pod; the example has 4.
ZONE = "default.svc.cluster.local"
OLDEST, NEWEST = "1.31", "1.37"
PYTHON = Path(os.environ.get("HOLDFAST_PYTHON", sys.executable))
# Does what a container runtime does. $1: what the image has, $2: what the pod has; then the command.
CONTAINER = r"""
set -eu
image=$1 pod=$2 name=$3; shift 3
hostname "$name"
mkdir -p /tmp/pod
mount -t tmpfs pod /tmp/pod
mkdir /tmp/pod/upper /tmp/pod/work /tmp/pod/root
mount -t overlay overlay -o lowerdir=/,upperdir=/tmp/pod/upper,workdir=/tmp/pod/work /tmp/pod/root
cd /tmp/pod/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmp tmp
mkdir -p opt/venv opt/holdfast app etc/holdfast run/holdfast logs
mount --bind "$VENV" opt/venv
mount --bind "$HOLDFAST" opt/holdfast
cp "$image"/train.py app
mount --bind "$pod"/secrets etc/holdfast
for memory in run/holdfast dev/shm; do mount -t tmpfs -o mode=2777,gid=1000 memory $memory; done
chown 0:1000 logs && chmod 2777 logs
cp "$pod"/hosts "$pod"/resolv.conf etc
cp "$image"/holdfast usr/local/bin
exec chroot /tmp/pod/root setpriv --reuid 1000 --regid 1000 --groups 1000 --bounding-set=-all --inh-caps=-all --no-new-privs \
  env -i --chdir=/app "$@"
"""


def serve_names(file):
    """Runs a name server for IPv4 addresses, which a file has as JSON."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 53))
        while True:
            question, client = server.recvfrom(512)
            labels, at = [], 12
            while size := question[at]:
                labels.append(question[at + 1:at + 1 + size].decode())
                at += 1 + size
            kind, = struct.unpack(">H", question[at + 1:at + 3])
            address = json.loads(Path(file).read_text()).get(".".join(labels).lower())
            answer = struct.pack(">HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton(address) if address and kind == 1 else b""
            head = question[:2] + struct.pack(">HHHHH", 0x8580 | (0 if address else 3), 1, 1 if answer else 0, 0, 0)
            server.sendto(head + question[12:at + 5] + answer, client)


def manifest(tls):
    """The manifests, as the API server gets them."""
    text = subprocess.run(["kubectl", "kustomize", EXAMPLE], check=True, capture_output=True, text=True).stdout if tls else (EXAMPLE / "train.yaml").read_text()
    return list(yaml.safe_load_all(text))


class Schema(unittest.TestCase):
    def test_the_manifests_are_as_kubernetes_wants_them(self):
        for tls in (False, True):
            for version in (OLDEST, NEWEST):
                kinds = []
                for part in manifest(tls):
                    with self.subTest(tls=tls, version=version, kind=part["kind"]):
                        kubernetes_validate.validate(part, version, strict=True)
                    kinds.append(part["kind"])
                self.assertEqual(sorted(kinds), ["Job", "Service"])

    def test_a_word_that_kubernetes_does_not_know_is_found(self):
        job = next(part for part in manifest(False) if part["kind"] == "Job")
        job["spec"]["template"]["spec"]["enableServiceLink"] = False
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(job, NEWEST, strict=True)

    def test_the_parts_fit_together(self):
        """Checks what the schema does not."""
        service, job = sorted(manifest(True), key=lambda part: part["kind"], reverse=True)
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        container, = pod["containers"]
        settings = {entry["name"]: entry.get("value") for entry in container["env"]}
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["selector"], {"batch.kubernetes.io/job-name": job["metadata"]["name"]})
        self.assertEqual(settings["PET_RDZV_ENDPOINT"].partition(":")[0], f"{job['metadata']['name']}-0.{pod['subdomain']}")
        self.assertEqual(settings["PET_NNODES"].split(":")[1], str(spec["completions"]))
        self.assertEqual(spec["completions"], spec["parallelism"])
        self.assertEqual(pod["restartPolicy"], "Never")  # podFailurePolicy requires it.
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in pod["volumes"]})


class Pods(unittest.TestCase):
    expected = ""

    def setUp(self):
        # Hosts share all folders except /tmp and /dev/shm.
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="holdfast-kubernetes-")))
        self.folder.chmod(0o755)
        image = self.folder / "image"
        image.mkdir()
        write_training(image / "train.py")
        (image / "holdfast").write_text('#!/bin/sh\nPYTHONPATH=/opt/holdfast exec /opt/venv/bin/python -m holdfast "$@"\n')
        for file, mode in (("train.py", 0o644), ("holdfast", 0o755)):
            (image / file).chmod(mode)
        self.fleet = self.enterContext(fleet_of(PODS + 1, BUILD))
        self.names = self.folder / "names"
        self.names.write_text("{}")
        with open(self.folder / "name-server", "w") as said:
            self.fleet.popen(PODS, ["python3", __file__, "--names", self.names], stdout=said, stderr=said, cwd="/")
        self.pods, self.count = {}, 0

    def secrets(self, tls):
        """Makes a folder like a volume of secrets with an fsGroup: links to files of root that the group may read."""
        folder = self.folder / f"secrets-{tls}"
        if folder.exists():
            return folder
        now = folder / "..now"
        now.mkdir(parents=True)
        (folder / "..data").symlink_to("..now")
        (now / "token").write_text("0123456789abcdef0123456789abcdef")
        if tls:
            keys = self.folder / "tls"
            subprocess.run([BUILD / "bin/holdfast", "tls", "new", "--hosts", "train-0.train", keys], check=True, stdout=subprocess.DEVNULL)
            for file in KEYS_OF_TLS:
                shutil.copy(keys / file, now)
        for file in now.iterdir():
            os.chown(file, 0, 1000)
            file.chmod(0o440)
            (folder / file.name).symlink_to(f"..data/{file.name}")
        return folder

    def start_pod(self, index, at=None, tls=False, **other):
        """Starts a pod as the kubelet does. The test decides when the pod's name is known."""
        host = index if at is None else at
        job = next(part for part in manifest(tls) if part["kind"] == "Job")
        container = job["spec"]["template"]["spec"]["containers"][0]
        settings = {entry["name"]: entry.get("value", str(index)) for entry in container["env"]}
        settings.update(PET_NPROC_PER_NODE=str(EACH), OMP_NUM_THREADS="1", PATH="/opt/venv/bin:/usr/local/bin:/usr/bin:/bin", HOME="/tmp", **other)
        self.count += 1
        pod = self.folder / f"pod-{self.count}"
        pod.mkdir()
        (pod / "secrets").symlink_to(self.secrets(tls))
        (pod / "hosts").write_text(f"127.0.0.1\tlocalhost\n{self.fleet.address(host)}\ttrain-{index}.train.{ZONE}\ttrain-{index}\n")
        (pod / "resolv.conf").write_text(f"search {ZONE} svc.cluster.local cluster.local\nnameserver {self.fleet.address(PODS)}\noptions ndots:5\n")
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "sh", "-c", CONTAINER, "sh", self.folder / "image", pod.resolve(),
                   f"train-{index}", *(f"{name}={value}" for name, value in settings.items()), *container["command"], *container["args"]]
        with open(pod / "said", "w") as said:
            self.pods[index] = self.fleet.popen(host, command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, cwd="/",
                                                env={**os.environ, "VENV": str(PYTHON.parent.parent), "HOLDFAST": str(BUILD / "python")})
        self.pods[index].host = host

    def name_pod(self, index):
        known = {**json.loads(self.names.read_text()), f"train-{index}.train.{ZONE}": self.fleet.address(self.pods[index].host)}
        new = self.names.with_suffix(".new")
        new.write_text(json.dumps(known))
        new.replace(self.names)

    def said(self):
        return "\n".join(f"--- {path.parent.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.glob("pod-*/said")))

    def until(self, what, name):
        end = time.monotonic() + LIMIT_S
        while not (found := what()):
            self.assertLess(time.monotonic(), end, f"{name} did not come\n{self.said()}")
            time.sleep(0.2)
        return found

    def in_training(self):
        """Waits until the job trains, by what `holdfast status` says in pod 0."""
        def there():
            done = self.in_pod(0, "holdfast", "status", "--json")
            return done.returncode == 0 and min((rank["version"] for rank in json.loads(done.stdout)["ranks"]), default=0) >= 40
        self.until(lambda: there() or any(pod.poll() is not None for pod in self.pods.values()), "step 40")
        self.assertEqual([pod.poll() for pod in self.pods.values()], [None] * PODS, self.said())

    def in_pod(self, index, *command):
        """Runs a command in a pod, as kubectl exec does."""
        host, first = self.pods[index].host, self.first_process(index)
        return self.fleet.run(host, ["nsenter", "-t", first, "-m", "-p", "-r", "-w", "setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", *command],
                              capture_output=True, text=True, cwd="/", timeout=LIMIT_S, env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOLDFAST_TOKEN_FILE": "/run/holdfast/token"})

    def first_process(self, index):
        """The pid of a pod's first process on its host: the child of unshare."""
        listed = self.fleet.run(self.pods[index].host, ["pgrep", "-f", "^/bin/sh -euc"], stdout=subprocess.PIPE, text=True, cwd="/", timeout=LIMIT_S).stdout
        return listed.split()[0] if listed.split() else "0"

    def stop_pod(self, index):
        """Stops a pod, as the kubelet does when the pod is deleted."""
        self.fleet.run(self.pods[index].host, ["kill", "-TERM", self.first_process(index)], check=True, cwd="/", timeout=LIMIT_S)

    def end(self):
        """Waits for all pods; returns their exit codes."""
        until = time.monotonic() + LIMIT_S
        for pod in self.pods.values():
            try:
                pod.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.fail(f"a pod did not end\n{self.said()}")
        return {index: pod.returncode for index, pod in self.pods.items()}

    def result(self):
        found = set(re.findall(RESULT, self.said()))
        self.assertEqual(len(found), 1, self.said())
        return found.pop()

    def undisturbed(self):
        """The result of a run without faults, in which pod 0 starts last, and its name is known even later."""
        if not Pods.expected:
            for index in (1, 2, 0):
                self.start_pod(index)
            time.sleep(3)  # How long the name is unknown.
            self.assertEqual([pod.poll() for pod in self.pods.values()], [None] * PODS, self.said())
            self.name_pod(0)
            self.assertEqual(self.end(), dict.fromkeys(range(PODS), 0), self.said())
            Pods.expected = self.result()
            self.forget()
        return Pods.expected

    def forget(self):
        """Removes the output of the pods of a job that has ended."""
        for said in self.folder.glob("pod-*/said"):
            said.unlink()

    def start(self, **how):
        for index in range(PODS):
            self.start_pod(index, **how)
        self.name_pod(0)
        self.in_training()

    def test_a_node_is_lost(self):
        expected = self.undisturbed()
        self.start()
        self.fleet.kill(1)
        del self.pods[1]
        self.assertEqual(self.end(), {0: 0, 2: 0}, self.said())
        self.assertEqual(self.result(), expected)

    def test_a_node_is_drained(self):
        """The pod goes at once, and the controller makes another one with its number."""
        expected = self.undisturbed()
        self.start()
        begin = time.monotonic()
        self.stop_pod(1)
        self.assertEqual(self.pods[1].wait(LIMIT_S), 137, self.said())
        self.assertLess(time.monotonic() - begin, 5)
        self.start_pod(1)
        self.assertEqual(self.end(), {0: 0, 1: 0, 2: 0}, self.said())
        self.assertEqual(self.result(), expected)

    def test_the_first_pods_node_is_lost(self):
        """The controller makes the pod again on another node. The other pods end, and start again with it."""
        expected = self.undisturbed()
        self.start()
        self.fleet.kill(0)
        self.start_pod(0, at=PODS)
        self.name_pod(0)
        for index in (1, 2):
            self.assertEqual(self.pods[index].wait(LIMIT_S), 137, self.said())
            self.start_pod(index)
        self.assertEqual(self.end(), dict.fromkeys(range(PODS), 0), self.said())
        self.assertEqual(self.result(), expected)

    def test_under_tls(self):
        expected = self.undisturbed()
        self.start(tls=True)
        self.stop_pod(1)
        self.assertEqual(self.pods.pop(1).wait(LIMIT_S), 137, self.said())
        self.assertEqual(self.end(), {0: 0, 2: 0}, self.said())
        self.assertEqual(self.result(), expected)

    def test_a_program_that_fails_is_told_from_a_lost_pod(self):
        (self.folder / "image" / "train.py").write_text("raise SystemExit(3)\n")
        for index in range(PODS):
            self.start_pod(index)
        self.name_pod(0)
        self.until(lambda: any(pod.poll() is not None for pod in self.pods.values()), "the first pod's end")
        self.assertFalse({pod.poll() for pod in self.pods.values()} & {0, 137}, self.said())
        for index, pod in self.pods.items():  # FailJob: the controller deletes the others.
            if pod.poll() is None:
                self.stop_pod(index)
        self.assertNotIn(0, self.end().values(), self.said())

    def test_all_pods_are_deleted(self):
        self.start()
        for index in range(PODS):
            self.stop_pod(index)
        self.assertEqual(self.end(), dict.fromkeys(range(PODS), 137), self.said())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--names"]:
        serve_names(sys.argv[2])
    try:
        import kubernetes_validate
        import yaml
    except ImportError as error:
        sys.exit(f"{error}: the first lines of {__file__} say what is needed")
    KEYS_OF_TLS = ("config.json", "ca.crt", "crl.pem", "server.p12", "server.password", "client.p12", "client.password")
    BUILD = Path(sys.argv.pop(sys.argv.index("--build") + 1)).resolve()
    sys.argv.remove("--build")
    unittest.main()
