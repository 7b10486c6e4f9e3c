"""As test_torch_kill.py, for all other kinds of jobs."""
# With --ci: two kills a kind.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import needs_torch, run
from torch_kills import compare

pytest_plugins = ["torch_kills"]
pytestmark = [pytest.mark.kill, needs_torch]


def test_torch_ddp_killed_in_its_first_steps_with_many_buckets_and_a_static_graph(
    tmp_path: Path, calm: Any
) -> None:
    config = {"ddp": {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.02}}
    compare(tmp_path, calm, config, [[1, 1, "collective"], [0, 2, "collective"]])


def test_torch_ddp_with_scaler_accumulation_and_layers_in_another_order_per_rank(
    tmp_path: Path, calm: Any
) -> None:
    config = {"scaler": True, "accumulate": 2, "branch": True, "optimizer": "SGD"}
    compare(tmp_path, calm, config, [[0, 5, "update"]])


def test_torch_ddp_with_gradients_summed_over_several_steps(tmp_path: Path, calm: Any) -> None:
    # A successor has to know that the step before exchanged nothing.
    compare(tmp_path, calm, {"window": 2}, [[1, 4, "forward"], [0, 10, "collective"]])


def test_torch_ddp_killed_at_each_place_of_a_window_of_summed_gradients(
    tmp_path: Path, calm: Any
) -> None:
    # After the second window it is known that the program drops them.
    kills = [[1, 5, "forward"], [0, 10, "between"], [1, 15, "forward"], [0, 16, "update"]]
    compare(tmp_path, calm, {"window": 4, "drop": "after"}, kills)


def test_torch_ddp_with_power_sgd_as_its_communication_hook(tmp_path: Path, calm: Any) -> None:
    # The hook's state holds what its sums have left out, as large as the gradients.
    compare(tmp_path, calm, {"power": True}, [[1, 6, "update"], [0, 9, "update"]])


def test_torch_ddp_with_sums_beside_the_backward_pass(tmp_path: Path, calm: Any) -> None:
    config = {"width": 512, "ddp": {"bucket_cap_mb": 0.5}}
    compare(tmp_path, calm, config, [[1, 3, "collective"], [0, 9, "collective"]], spares=1)
    assert all(result["beside"] for result in calm(config, 2).values())


def test_torch_ddp_whose_buckets_lie_where_all_ranks_add_up(tmp_path: Path) -> None:
    config: dict[str, Any] = {"width": 512, "window": 2, "ddp": {"bucket_cap_mb": 0.3}}
    staged = run(tmp_path / "staged", {**config, "staged": [0, 1]})
    assert [staged[rank].pop("moved") for rank in (0, 1)] == [0, 0]
    config["ddp"]["gradient_as_bucket_view"] = True
    one_of_two = run(tmp_path / "one", {**config, "staged": [1]})
    assert [one_of_two[rank].pop("moved") for rank in (0, 1)] == [3, 0]
    kills = [[1, 4, "collective"], [0, 10, "update"]]
    results = run(tmp_path / "job", {**config, "kills": kills}, spares=1)
    assert [results[rank].pop("moved") for rank in (0, 1)] == [3, 3]
    assert len(list((tmp_path / "job").glob("killed-*"))) == 2
    assert results == staged == one_of_two


@pytest.mark.parametrize("original", [False, True])
def test_torch_fsdp_of_the_first_kind(tmp_path: Path, calm: Any, original: bool) -> None:
    config = {"kind": "FullyShardedDataParallel", "original": original}
    compare(tmp_path, calm, config, [[1, 2, "collective"], [0, 6, "update"]], spares=int(original))


def test_torch_hsdp_with_groups_of_some_ranks(tmp_path: Path, calm: Any) -> None:
    compare(tmp_path, calm, {"kind": "hsdp"}, [[1, 3, "collective"]], ranks=4)


def test_torch_without_state_a_fault_ends_all_and_all_start_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import holdfast; holdfast.init()\n"
        "import json, os, signal, sys, torch, torch.distributed as dist, holdfast.torch\n"
        "folder = sys.argv[2]\n"
        "dist.init_process_group('holdfast')\n"
        "t = torch.ones(1)\n"
        "for n in range(5):\n"
        "    if n == 3 and dist.get_rank() == 1 and not os.path.exists(folder + '/killed'):\n"
        "        open(folder + '/killed', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    dist.all_reduce(t)\n"
        "json.dump(t.item(), open(f'{folder}/result-{dist.get_rank()}', 'w'))\n"
        "dist.destroy_process_group()\n"
    )
    results = run(tmp_path / "job", {}, program=program)
    assert results == {0: 32.0, 1: 32.0}
