"""The examples, as they are and with their diffs, and with a process killed; torch is unchanged."""
# With --ci: all examples, each four times.

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from torch_job import needs_torch
from torch_warm import undisturbed

pytestmark = needs_torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pytorch"
LIMIT_S = 300
# Fewer steps than the examples make, so that a test may run them all.
SHORTER = {
    "digits(16384)": "digits(1280)",
    "pictures(2048)": "pictures(256)",
    '"replace")': '"replace")[:20000]',
    "epochs=3": "epochs=2",
    "range(3)": "range(2)",
}
# Notes which process has which rank, in a step long enough for a kill to hit. At the end: all bits.
NOTE = """

def note() -> None:
    import os, time
    if "HOLDFAST_REHEARSE" in os.environ:
        return
    path = "pid-" + os.environ["RANK"]
    open(path + ".new", "w").write(str(os.getpid()))
    os.replace(path + ".new", path)
    time.sleep(0.02)


def bits(model) -> str:
    import hashlib
    values = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(values).hexdigest()


"""


def prepared(folder: Path, name: str, with_diff: bool) -> Path:
    """Return a shorter copy of an example."""
    script = folder / "train.py"
    script.write_text((EXAMPLES / f"{name}.py").read_text())
    if with_diff:
        subprocess.run(
            ["patch", "-s", str(script), str(EXAMPLES / f"{name}.diff")],
            check=True,
            capture_output=True,
        )
    text = script.read_text()
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    text = text.replace("\n\n\ndef main()", NOTE + "def main()")
    text, found = re.subn(r"(?m)^( *)loss\.backward\(\)$", r"\g<0>\n\1note()", text)
    assert found == 1
    text, found = re.subn(r'print\((f"loss .*")\)$', r"print(\1, bits(model))", text, flags=re.M)
    assert found == 1
    script.write_text(text)
    compile(text, str(script), "exec")
    return script


def train(folder: Path, script: Path, kill: bool) -> str:
    """Run two ranks; return the last line that rank 0 prints."""
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node=2", str(script)]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, TORCH_CPP_LOG_LEVEL="ERROR"),
    ) as process:
        deadline = time.monotonic() + LIMIT_S
        while kill and time.monotonic() < deadline and process.poll() is None:
            if (folder / "pid-1").exists():
                os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
                break
            time.sleep(0.01)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    assert process.returncode == 0, out + err
    if kill:
        reports = (folder / "holdfast-logs" / "recoveries.jsonl").read_text()
        assert reports.count("\n") == 1, out + err
    found = re.findall(r"\[default0\]:(loss .*)", out)
    assert len(found) == 1, out + err
    return str(found[0])


def calmly(folder: Path, script: Path) -> str:
    """Run two ranks that nobody kills; return the last line that rank 0 prints."""
    undisturbed(folder, [str(script)], 2)
    found = re.findall(r"^(loss .*)", (folder / "warm-0").read_text(), re.M)
    assert len(found) == 1, found
    return str(found[0])


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_torch_an_example_with_its_diff_survives_a_kill(tmp_path: Path, name: str) -> None:
    plain, calm, killed = tmp_path / "plain", tmp_path / "calm", tmp_path / "killed"
    for folder in (plain, calm, killed):
        folder.mkdir()
    assert train(plain, prepared(plain, name, with_diff=False), kill=False)
    expected = calmly(calm, prepared(calm, name, with_diff=True))
    assert train(killed, prepared(killed, name, with_diff=True), kill=True) == expected


def test_torch_is_as_it_was_installed() -> None:
    distribution = metadata.distribution("torch")
    record = distribution.read_text("RECORD")
    assert record is not None
    checked = 0
    for name, expected, _ in csv.reader(record.splitlines()):
        path = Path(str(distribution.locate_file(name)))
        # All Python files and small libraries. The large libraries would take a minute.
        if not expected or path.stat().st_size > 50_000_000:
            continue
        kind, _, digest = expected.partition("=")
        actual = base64.urlsafe_b64encode(hashlib.new(kind, path.read_bytes()).digest())
        assert actual.rstrip(b"=").decode() == digest, f"{name} is not as PyPI has it"
        checked += 1
    assert checked > 5000
