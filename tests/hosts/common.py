"""What the tests of jobs over several hosts have in common."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "chaos")]
from fleet import Fleet  # noqa: E402


def fleet_of(count: int, build: Path) -> Fleet:
    """Hosts that see the sources and this build folder, also where these lie in what each host has of its own."""
    own = (Path("/tmp"), Path("/dev/shm"))
    return Fleet.up(count, shared=[path for path in {ROOT, build} if any(path.is_relative_to(folder) for folder in own)])
