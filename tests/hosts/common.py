"""What the tests of jobs over several hosts have in common."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "chaos"), str(ROOT / "examples")]
from demo_power_cut import newest  # noqa: E402,F401
from fleet import Fleet  # noqa: E402


def fleet_of(count: int, build: Path) -> Fleet:
    """Hosts that see the sources and the build folder, even if these lie in /tmp or /dev/shm."""
    own = (Path("/tmp"), Path("/dev/shm"))
    return Fleet.up(count, shared=[path for path in {ROOT, build} if any(path.is_relative_to(folder) for folder in own)])


# At the end, rank 0 prints a digest of what it has.
SAYS = """\
        import hashlib
        digest = hashlib.sha256()
        for of in (net.state_dict().values(), *(s.values() for s in optimizer.state.values())):
            for value in of:
                digest.update(value.numpy().tobytes())
        print(f"loss {run.loss.hex()} state {digest.hexdigest()}")
"""
RESULT = r"loss \S+ state \w+"


def write_training(path: Path) -> None:
    """Writes the PyTorch example with its patch, for EPOCHS (default 12) epochs, and with SAYS."""
    path.write_text((ROOT / "examples/pytorch/mlp.py").read_text())
    with open(ROOT / "examples/pytorch/mlp.diff") as patch:
        subprocess.run(["patch", "-s", path], stdin=patch, check=True)
    program = path.read_text()
    epochs = 'epochs=int(__import__("os").environ.get("EPOCHS", "12"))'
    for old, new in (('        print(f"loss {run.loss:.4f}")\n', SAYS), ("epochs=3", epochs)):
        assert old in program, f"{old} is no longer in mlp.py with mlp.diff"
        program = program.replace(old, new)
    path.write_text(program)
