"""Each collective that a script makes meets the same one on other ranks, also after kills."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, NIGHTLY, Job, digests

pytestmark = NEEDS_MINDSPORE

if not NEEDS_MINDSPORE.args[0]:
    import mindspore as ms
    import numpy as np

    from holdfast._abi import Op
    from holdfast.mindspore import _operators

Found = tuple[dict[str, str], set[str]]
STEPS = 8


def run(folder: Path, spares: int, **config: Any) -> Found:
    """Return the checkpoints of a job of mindspore_operators.py, and the losses of its steps."""
    config = {"steps": STEPS, "spare": spares > 0, **config}
    program = [str(HERE / "mindspore_operators.py"), json.dumps(config)]
    made = Job(folder, folder, program, spares=spares)
    try:
        made.end()
    finally:
        made.stop()
    assert len(list(folder.glob("killed-*"))) == len(config["kills"])
    logs = made.logs()
    # That would cost restarts, and the bits would still be right.
    assert "the ranks run different collectives" not in logs, logs
    found = {line for line in logs.splitlines() if line.startswith("LOSS")}
    return digests(folder), found


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Found]:
    """Return the results without kills, made once for each configuration."""
    made: dict[str, Found] = {}

    def found(**config: Any) -> Found:
        key = json.dumps(config)
        if key not in made:
            folder = tmp_path_factory.mktemp("calm") / "job"
            made[key] = run(folder, 0, kills=[], **config)
            files, losses = made[key]
            assert sorted(files) == ["final-0.ckpt", "final-1.ckpt"] and len(losses) == STEPS
        return made[key]

    return found


REDUCED, MOVED = ["reduced"], ["moved"]  # Small: MindSpore reorders them from step 2 on.


@pytest.mark.kill
@pytest.mark.parametrize(
    ("graph", "parts", "spares", "kills"),
    [
        pytest.param(True, REDUCED, 0, [[1, 2], [0, 6]], id="graph-reduced"),
        pytest.param(True, MOVED, 0, [[0, 2], [1, 6]], id="graph-moved"),
        pytest.param(True, REDUCED, 1, [[1, 2], [0, 6]], id="graph-spare", marks=NIGHTLY),
        pytest.param(True, MOVED, 0, [[0, 1], [1, 2], [0, 3]], id="graph-at-once", marks=NIGHTLY),
        pytest.param(True, [*REDUCED, *MOVED], 0, [[0, 2], [1, 6]], id="graph-all", marks=NIGHTLY),
        pytest.param(False, [*REDUCED, *MOVED], 0, [[1, 2], [0, 6]], id="pynative", marks=NIGHTLY),
    ],
)
def test_mindspore_every_operator_of_a_script_gives_the_same_bits_after_kills(
    tmp_path: Path, calm: Any, graph: bool, parts: list[str], spares: int, kills: list[list[int]]
) -> None:
    found = run(tmp_path / "job", spares, graph=graph, parts=parts, kills=kills)
    assert found == calm(graph=graph, parts=parts)


ORDER = """
import sys
import numpy as np
import mindspore as ms
from mindspore import ops
from mindspore.communication import get_rank, init
ms.set_context(mode=ms.PYNATIVE_MODE)
init()
first, second = ops.AllReduce(), ops.AllReduce()
inputs = {first: ms.Tensor(np.float32([1 + get_rank()])), second: ms.Tensor(np.float32([10]))}
turned = sys.argv[1] == "turned" and get_rank() == 1
order = [second, first] if turned else [first, second]
if sys.argv[1] == "backward" and get_rank() == 1:
    first.bprop(inputs[first], inputs[first], inputs[first])
sums = {operator: operator(inputs[operator]).asnumpy() for operator in order}
print("SUMS", float(sums[first][0]), float(sums[second][0]), flush=True)
"""


def test_mindspore_equal_collectives_in_different_orders_are_named(tmp_path: Path) -> None:
    sentences = {
        "turned": "at AllReduce 1 (sum, elements: 1), rank 1 of the group at AllReduce 2 (",
        "backward": "AllReduce 1 (sum, elements: 1), rank 1 of the group at the backward of AllRed",
    }
    for kind in ("alike", *sentences):
        (tmp_path / f"{kind}.py").write_text(ORDER)
        run = Job(tmp_path / kind, tmp_path, [str(tmp_path / f"{kind}.py"), kind])
        try:
            run.end(code=0 if kind == "alike" else None)
        finally:
            run.stop()
        logs = run.logs()
        assert ("SUMS 3.0 20.0" in logs) is (kind == "alike"), logs
        assert all((text in logs) is (kind == which) for which, text in sentences.items()), logs


def test_mindspore_operators_are_numbered_alike_whatever_callbacks_make() -> None:
    numbers = _operators.Numbers()
    assert [numbers.next("sum", False) for _ in range(257)][-2:] == [256, 1]
    assert numbers.next("gather", False) == 1
    for _ in range(2):  # Each graph counts for itself, in a training too.
        with numbers.of_a_graph():
            assert [numbers.next("sum", trained) for trained in (False, True)] == [1001, 1002]
    assert numbers.next("sum", True) == 0


@pytest.fixture(params=["GRAPH_MODE", "PYNATIVE_MODE"])
def mode(request: pytest.FixtureRequest) -> Any:
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, request.param))
    yield
    ms.set_context(mode=before)


@pytest.mark.usefixtures("mode")
def test_mindspore_gradients_go_back_through_operators_in_loops_and_branches() -> None:
    # Not connected, so echoes: as if both ranks had sent the same.
    total, most = _operators.reduce(0, 2, Op.SUM), _operators.reduce(0, 2, Op.MAX)
    whole, part = _operators.gather(0, 2, 0), _operators.scatter(0, 2, 0, Op.SUM)

    class Branch(ms.nn.Cell):
        def construct(self, x):  # type: ignore[no-untyped-def]
            y = total(x) if x.sum() > 0 else x
            return (y * y).sum()

    class Loop(ms.nn.Cell):
        def construct(self, x):  # type: ignore[no-untyped-def]
            i = ms.Tensor(0)
            while i < 2:
                x, i = total(x) + most(x), i + 1
            return x.sum()

    class Inner(ms.nn.Cell):
        def construct(self, x):  # type: ignore[no-untyped-def]
            return part(whole(x) * whole(x))

    class Again(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.inner.recompute()

        def construct(self, x):  # type: ignore[no-untyped-def]
            return self.inner(self.inner(x)).sum()

    values = np.float32([[1, 2, 3], [4, 5, 6]])
    expected = (Branch(), 8 * values), (Loop(), 16 + 0 * values), (Again(), 32 * values**3)
    for cell, gradient in expected:
        assert (ms.grad(cell)(ms.Tensor(values)).asnumpy() == gradient).all(), cell
