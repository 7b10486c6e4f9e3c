"""`holdfast doctor`: what this host and this Python have, what will not work, and what to do.

The native program looks at the host. Then come this Python's packages, and a small job: two
ranks, of which one is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from holdfast import _tried

_BIN: Final = Path(__file__).resolve().parent / "bin"
_TRIAL: Final = Path(__file__).with_name("_trial.py")
_JOB: Final = "a job of two ranks, one of them killed"
_STEPS: Final = 300
_PATIENCE_S: Final = 120
# What programs may use, and what `pip install` would bring.
_PACKAGES: Final = ("torch", "mindspore", "numpy", "lightning", "transformers", "accelerate")


def _say(level: str, what: str, advice: str = "") -> None:
    print(f"{level:4}  {what}", *([f"      {advice}"] if advice else []), sep="\n", flush=True)


def _version(package: str) -> str:
    """Return the installed version; empty: there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _look_at_packages() -> None:
    """Say which frameworks this Python has."""
    have = {name: version for name in _PACKAGES if (version := _version(name))}
    _say(
        "ok",
        f"Python {sys.version.split()[0]} ({sys.executable}) has "
        + (", ".join(f"{name} {version}" for name, version in have.items()) or "no framework"),
    )
    if not {"torch", "mindspore"} & set(have):
        _say(
            "note",
            "neither torch nor mindspore is installed beside Holdfast",
            "pip install torch; or: pip install mindspore==2.10.0 'numpy<2'",
        )
    for name in ("torch", "mindspore"):
        if name not in have or not (works := _tried.working(name)):
            continue
        if refusal := _tried.refusal(name, have[name]):
            _say("BAD", refusal)
        elif _tried.minor(have[name]) not in works:
            _say("note", f"{name} {have[name]} was not tried; those that were: {', '.join(works)}")
    if "mindspore" in have and not have.get("numpy", "1").startswith("1."):
        _say("BAD", f"MindSpore does not work with numpy {have['numpy']}", "pip install 'numpy<2'")


def _try_a_job() -> bool:
    """Run two ranks, kill one, and say how it went."""
    # The environment's settings may be for one process of another job (MS_ROLE).
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "MS_"))}
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node=2"]
        command += [f"--log-dir={folder / 'log'}", str(_TRIAL), str(folder), str(_STEPS)]
        try:
            done = subprocess.run(
                command,
                env=settings,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_PATIENCE_S,
            )
            code, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            code, said = -1, (error.stdout or b"").decode(errors="replace")
        wrong = _what_is_wrong(folder, code)
        if not wrong:
            report = json.loads((folder / "log" / "recoveries.jsonl").read_text().splitlines()[0])
            ms = report["first_step_ms"]
            _say("ok", f"{_JOB}: went on after {ms:.0f} ms with the same bits")
            return True
    last = "\n      ".join(said.splitlines()[-15:])
    _say("BAD", f"{_JOB}: {wrong}", f"it said:\n      {last}")
    return False


def _what_is_wrong(folder: Path, code: int) -> str:
    """Return what is wrong with the trial's result; empty: nothing."""
    if code:
        return f"not done after {_PATIENCE_S} s" if code == -1 else f"it ended with code {code}"
    if not (folder / "killed").exists():
        return "the process that was to be killed was not"
    results = [(folder / f"rank-{rank}").read_bytes() for rank in range(2)]
    from holdfast._trial import result_of

    return "" if results == [result_of(_STEPS)] * 2 else "its result is wrong"


def main(words: Sequence[str]) -> int:
    """Say it all. Return the exit code: 1 if something is bad."""
    sys.stdout.flush()
    # py-spy is looked for beside this Python, too, as when a job starts.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    environment = {**os.environ, "PATH": path}
    code = subprocess.run([_BIN / "holdfast", "doctor", *words], env=environment).returncode
    if code == 2 or any(word in ("-h", "--help") for word in words):
        return code
    _look_at_packages()
    on_path = shutil.which("holdfast")
    beside = Path(sys.executable).with_name("holdfast")
    if on_path and beside.exists() and Path(on_path).resolve() != beside.resolve():
        _say("note", f"`holdfast` in the PATH is {on_path}, which is not this Python's")
    return code if _try_a_job() else 1
