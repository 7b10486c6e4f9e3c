"""The process group beneath DistributedDataParallel, with faked faults."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import threading
import time
import types
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import holdfast.torch as hf  # noqa: E402
from holdfast._abi import Status  # noqa: E402
from holdfast._errors import MarkedError, PeerError, UserError  # noqa: E402
from holdfast._seat import Phase  # noqa: E402
from holdfast.torch import _ddp, _engine, _group, _private, _work  # noqa: E402
from holdfast.torch._buckets import Buckets  # noqa: E402
from holdfast.torch._gradients import Gradients  # noqa: E402
from holdfast.torch._hooks import HookState, see_that_hooks_are_kept  # noqa: E402
from holdfast.torch._image import Kept  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def world() -> None:
    if not dist.is_initialized():
        hf.init()


class Broken:
    """A fake library whose collectives leave garbage and return that a fault cut them short."""

    def __init__(self, status: int) -> None:
        self.status = status

    def hf_all_reduce(self, group: Any, pointer: int, count: int, *_: Any) -> int:
        import ctypes

        ctypes.memset(pointer, 0x7F, 4 * count)
        return self.status

    def hf_broadcast(self, group: Any, pointer: int, size: int, *_: Any) -> int:
        import ctypes

        ctypes.memset(pointer, 0x7F, size)
        return self.status


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a group of four within a step, all of whose collectives are cut short."""

    def make(status: int = Status.ABORTED, in_step: bool = True) -> Any:
        engine = _engine.start(managed=True)
        monkeypatch.setattr(engine, "phase", Phase.LIVE)
        monkeypatch.setattr(engine, "in_step", in_step)
        monkeypatch.setattr(engine, "marked", False)
        monkeypatch.setattr(_group, "lib", Broken(status))
        monkeypatch.setattr(_group.HoldfastGroup, "_group", lambda self: 1)
        return _group.HoldfastGroup(engine, 0, 4, "four", [0, 1, 2, 3])

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_torch_what_a_fault_cut_short_is_an_echo(broken: Any, dtype: torch.dtype) -> None:
    group = broken()
    tensor = torch.arange(5).to(dtype)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [0, 4, 8, 12, 16]  # As if all four had sent the same.
    assert group._engine.marked
    mine = torch.tensor([7, 8], dtype=dtype)
    group.broadcast([mine], 0)
    assert mine.tolist() == [7, 8]


@pytest.mark.parametrize("elements", [3, 1 << 20])
def test_torch_what_another_rank_would_have_sent_is_zero_in_a_void_step(
    broken: Any, elements: int
) -> None:
    group = broken()
    unfilled = -4673361451380162419
    for dtype in (torch.int64, torch.float32):
        for _ in range(2):  # First cut short, then in a step known to be void.
            tensor = torch.full((elements,), unfilled).to(dtype)
            group.broadcast([tensor], 3)
            assert not tensor.any()
    assert group._engine.marked
    tensor = torch.full((elements,), unfilled)
    work = types.SimpleNamespace(hold=lambda _: None, poll=lambda _: Status.ABORTED)
    lose = functools.partial(group._nothing_came, tensor)
    assert _work.Started(group._engine.cut_short, work, [tensor], lambda: None, lose).wait()
    assert not tensor.any()


def test_torch_objects_of_another_rank_that_a_fault_cut_short_are_never_unpickled(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = broken()
    known = dist.distributed_c10d._world
    monkeypatch.setitem(known.pg_map, group, ("holdfast", None))
    monkeypatch.setitem(known.pg_group_ranks, group, {rank: rank for rank in range(4)})
    for ask in (dist.broadcast_object_list, dist.recv_object_list):
        with pytest.raises(MarkedError, match=f"{ask.__name__} was not completed"):
            ask([None], None, group, torch.device("cpu"), group_src=3)
        monkeypatch.setattr(type(group), "_group", lambda self: 0)  # The step is known to be void.
    monkeypatch.setattr(type(group), "_group", lambda self: 1)

    def broadcast_object_list() -> None:  # A function of the program's, for a tensor.
        group.broadcast([torch.empty(1, dtype=torch.int64)], 3)

    broadcast_object_list()


def test_torch_a_large_sum_that_was_cut_short_is_finite(broken: Any) -> None:
    group = broken()
    tensor = torch.ones(1 << 20)
    group.allreduce([tensor])
    assert bool(torch.isfinite(tensor).all())


def test_torch_ranks_that_ask_for_different_things_get_an_error_and_no_data(broken: Any) -> None:
    for status in (Status.MISMATCH, Status.LEFT):
        with pytest.raises(PeerError):
            broken(status).allreduce([torch.ones(3)])


def test_torch_outside_a_step_a_fault_is_an_error(broken: Any) -> None:
    with pytest.raises(MarkedError, match="outside a step"):
        broken(in_step=False).allreduce([torch.ones(3)])


def test_torch_what_it_can_not_do_is_said() -> None:
    group = dist.group.WORLD
    with pytest.raises(UserError, match="CPU memory"):
        dist.all_reduce(torch.empty(3, device="meta"))
    with pytest.raises(UserError, match="dense"):
        dist.all_reduce(torch.eye(3).to_sparse())
    with pytest.raises(UserError, match="name the source"):
        group.recv_anysource([torch.zeros(1)], 0)
    for splits in ([6], [1], [2, 0]):  # These would read and write beyond the tensors.
        with pytest.raises(UserError, match="of 2 rows for 1 ranks"):
            dist.all_to_all_single(torch.zeros(2, 3), torch.zeros(2, 3), [2], splits)
    with pytest.raises(UserError, match="place of"):
        hf.init()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    with pytest.raises(UserError, match="make the State"):
        optimizer.step()


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what DDP exchanges: "broadcast int32", ..."""
    seen: list[str] = []
    for name in ("_broadcast", "_reduce"):
        usual = getattr(_group.HoldfastGroup, name)

        def watched(self: Any, tensor: Any, what: Any, usual: Any = usual) -> None:
            used_map = self._used_map
            usual(self, tensor, what)
            if not self._engine.echoing and used_map == self._used_map:
                seen.append(f"{usual.__name__[1:]} {str(tensor.dtype).split('.')[1]}")

        monkeypatch.setattr(_group.HoldfastGroup, name, watched)
    return seen


def network() -> nn.Module:
    return nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))


def train(ddp: Any, seen: list[str]) -> list[list[str]]:
    """Return what each of three steps exchanged."""
    steps = []
    for _ in range(3):
        seen.clear()
        ddp(torch.ones(2, 300)).sum().backward()
        steps.append(list(seen))
    return steps


def test_torch_the_reducers_private_names_are_there() -> None:
    ddp = DistributedDataParallel(network())
    assert _private.lacks_to_settle(ddp) is None and _private.can_read_buckets(ddp)
    assert _private.prepare_for_a_pass(ddp) and _private.can_share()


@pytest.mark.parametrize("static", [False, True])
def test_torch_ddp_exchanges_the_same_in_its_first_step_as_in_later_ones(
    monkeypatch: pytest.MonkeyPatch, static: bool
) -> None:
    seen = watch(monkeypatch)
    arguments = {"bucket_cap_mb": 0.5, "static_graph": static}
    usual = train(DistributedDataParallel(network(), **arguments), seen)
    assert len({tuple(step) for step in usual}) > 1  # Usual DDP does change its exchanges.

    ddp = DistributedDataParallel(network(), **arguments)
    _ddp.settle(ddp, _engine.start(managed=True))
    before = _private.bucket_sizes(ddp)
    steps = train(ddp, seen)
    assert steps[0] == steps[1] == steps[2]
    assert set(steps[0]) == {"reduce float32"}
    assert len(steps[0]) > 1
    assert _private.bucket_sizes(ddp) == before


def settled(**arguments: Any) -> Any:
    ddp = DistributedDataParallel(network(), bucket_cap_mb=0.5, **arguments)
    _ddp.settle(ddp, _engine.start(managed=True))
    return ddp


@pytest.mark.parametrize("view", [False, True])
def test_torch_a_spare_makes_a_backward_pass_that_nobody_sees(
    monkeypatch: pytest.MonkeyPatch, view: bool
) -> None:
    engine = _engine.start(managed=True)
    monkeypatch.setattr(engine, "buckets", Buckets(print))
    seen = watch(monkeypatch)
    usual = train(settled(), seen)
    monkeypatch.setattr(engine, "buckets", Buckets(print))
    ddp = settled(gradient_as_bucket_view=view)
    seen.clear()
    with engine.echo(), monkeypatch.context() as patch:
        patch.setattr(ddp.process_group, "_size", 2)
        _ddp.rehearse(ddp, engine)
    assert seen == [] and not engine.rehearsing
    assert all(p.grad is None for p in ddp.parameters())
    # The buckets have their files, but are not registered yet: that needs a session.
    sizes = sorted(storage.nbytes() // 4 for storage, _ in engine.buckets._shared.values())
    assert sizes == sorted(_private.bucket_sizes(ddp))
    assert all(storage.is_shared() for storage, _ in engine.buckets._shared.values())
    assert engine.buckets.pending and not engine.buckets.moved
    assert train(ddp, seen) == usual
    expected = DistributedDataParallel(ddp.module)
    gradients = [p.grad.clone() for p in ddp.parameters()]
    for p in ddp.parameters():
        p.grad = None
    for _ in range(3):
        expected(torch.ones(2, 300)).sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(ddp.parameters(), gradients))


class Noted:
    """Records all calls of its methods."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        self._calls.append(name)
        return lambda *_: None


@pytest.mark.parametrize("observed", ["parameter", "sums", "learns"])
def test_torch_what_somebody_would_see_of_a_rehearsal_is_not_rehearsed(observed: str) -> None:
    engine = _engine.start(managed=True)
    ddp = settled(static_graph=observed == "learns")
    calls = []
    if observed == "parameter":
        ddp.module[0].weight.register_post_accumulate_grad_hook(calls.append)
    if observed == "sums":
        ddp.register_comm_hook(None, lambda _, bucket: calls.append(bucket))
    if observed == "learns":
        ddp.reducer = Noted(calls)
    with engine.echo():
        _ddp.rehearse(ddp, engine)
    assert calls == []


def test_torch_sparse_gradients_are_told_in_a_sentence() -> None:
    engine = _engine.start(managed=True)
    plain = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True))
    ddp = DistributedDataParallel(copy.deepcopy(plain))
    with pytest.raises(UserError, match=r"`0` has sparse gradients, .* sparse=False"):
        _ddp.settle(ddp, engine)
    kept = Kept()
    kept.add("model", plain)
    plain(torch.arange(2)).sum().backward()
    with pytest.raises(UserError, match=r"a step left a sparse gradient, .* drop it"):
        Gradients(kept).end_step(has_updated=True)


@pytest.mark.parametrize("learns", [False, True])
def test_torch_parameters_frozen_after_their_ddp_are_told_in_a_sentence(learns: bool) -> None:
    engine = _engine.start(managed=True)
    ddp = DistributedDataParallel(network(), bucket_cap_mb=0.5, static_graph=learns)
    ddp.module[0].weight.requires_grad_(False)
    with pytest.raises(UserError, match=r"were frozen .* set requires_grad first"):
        _ddp.settle(ddp, engine)
    net = network()
    net[0].weight.requires_grad_(False)
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.5, static_graph=learns)
    net[0].weight.requires_grad_(True)
    with pytest.raises(UserError, match=r"were unfrozen .* set requires_grad first"):
        _ddp.settle(ddp, engine)
    ddp = DistributedDataParallel(net, find_unused_parameters=True)
    net[0].weight.requires_grad_(False)
    _ddp.settle(ddp, engine)  # As without Holdfast: it has no gradient and is not used.


def test_torch_parameters_that_ddp_leaves_out_are_left_out() -> None:
    net = network()
    net.register_parameter("own", torch.nn.Parameter(torch.zeros(3)))
    net[-1].bias = net[0].bias  # Shared.
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["own", "0.weight"])
    ddp = DistributedDataParallel(net)
    summed = _ddp._summed(ddp)
    assert list(map(id, summed)) == list(map(id, ddp._build_params_for_reducer()[0]))
    assert any(p is net.own for p in summed)  # Due to a bug of torch.
    assert not any(p is net[0].weight for p in summed)
    _ddp.settle(ddp, _engine.start(managed=True))


def test_torch_the_state_of_a_communication_hook_has_to_be_given() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    ddp = DistributedDataParallel(network())
    power = powerSGD_hook.PowerSGDState(None)
    ddp.register_comm_hook(power, powerSGD_hook.powerSGD_hook)
    with pytest.raises(UserError, match="goes by a PowerSGDState that State was not given"):
        see_that_hooks_are_kept([ddp], {"other": HookState(powerSGD_hook.PowerSGDState(None))})
    held = HookState(power)
    assert see_that_hooks_are_kept([ddp], {"hook": held}) == 3 * sum(
        p.nbytes for p in ddp.parameters()
    )
    before = held.state_dict()
    power.iter, power.error_dict = 7, {0: torch.ones(2)}
    held.load_state_dict(before)
    assert power.iter == 0 and power.error_dict == {}


def test_torch_a_ddp_that_has_made_steps_is_refused() -> None:
    ddp = DistributedDataParallel(network())
    for _ in range(2):
        ddp(torch.ones(2, 300)).sum().backward()
    with pytest.raises(UserError, match="before the first"):
        _ddp.settle(ddp, _engine.start(managed=True))


def test_torch_a_spare_has_its_place_when_its_state_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = _engine.start(managed=True)
    monkeypatch.setattr(engine.seat, "_spare", True)
    monkeypatch.setattr(engine.seat, "_place", None)
    known: list[bool] = []

    class Worker:
        solo = True

        def open(self, **_: Any) -> Any:
            known.append(engine.seat.place_known)
            return types.SimpleNamespace(end_on_exit=lambda: None)

    monkeypatch.setattr(engine.seat, "worker", Worker())
    engine.open(private_bytes=8)
    assert known == [True]
    assert not engine.seat.waits_spare


def beside() -> Any:
    options = dist.AllreduceOptions()
    if not hasattr(options, "asyncOp"):
        pytest.skip("torch before 2.8 tells no group that a sum may be complete later")
    options.asyncOp = True
    return options


def test_torch_a_large_sum_runs_beside_its_caller_and_in_order(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_of_calls = _group.HoldfastGroup._group
    group = broken(Status.OK)
    monkeypatch.setattr(_group.HoldfastGroup, "_group", order_of_calls)
    group._handle = 1  # The group of the session.
    begun, let_go = threading.Event(), threading.Event()
    order: list[str] = []
    usual = _group.lib.hf_all_reduce

    def slow(native: Any, pointer: int, count: int, *rest: Any) -> int:
        order.append(f"{count} begins")
        begun.set()
        assert count < 1 << 18 or let_go.wait(30)
        order.append(f"{count} ends")
        return int(usual(native, pointer, count, *rest))

    monkeypatch.setattr(_group.lib, "hf_all_reduce", slow, raising=False)
    options = beside()
    large, small = torch.ones(1 << 18), torch.ones(8)
    work = group.allreduce([large], options)
    assert begun.wait(30)
    assert not work.is_completed()
    threading.Timer(0.2, let_go.set).start()
    group.allreduce([small])
    assert order == [f"{n} {what}" for n in (1 << 18, 8) for what in ("begins", "ends")]
    assert work.wait()


def test_torch_what_goes_wrong_beside_the_caller_is_said_at_the_end_of_the_step(
    broken: Any,
) -> None:
    group = broken(Status.MISMATCH)
    group.allreduce([torch.ones(1 << 18)], beside()).wait()
    with pytest.raises(PeerError):
        group._engine.settle()
    group._engine.settle()  # Once.


def test_torch_a_callback_of_a_sum_may_start_another_and_wait_for_it(broken: Any) -> None:
    group = broken(Status.OK)
    tensors = [torch.ones(1 << 18) for _ in range(2)]
    let_go = threading.Event()
    seen: list[bool] = []

    def more(future: Any) -> None:
        seen.append(group.allreduce([tensors[1]], beside()).wait())
        assert let_go.wait(30)
        seen.append(True)

    hold = threading.Event()
    held = group.runner.start(lambda: hold.wait(30) and None, [])
    chained = group.allreduce([tensors[0]], beside()).get_future().then(more)
    hold.set()
    held.wait()
    threading.Timer(0.1, let_go.set).start()
    group.runner.drain()
    assert seen == [True, True]  # The callbacks have ended as well.
    chained.wait()


def two_sums(group: Any) -> tuple[Any, Any, threading.Event]:
    """Return two sums that are carried out when the event is set, one after the other."""
    hold = threading.Event()
    group.runner.start(lambda: hold.wait(30) and None, [])
    first, second = (group.allreduce([torch.ones(1 << 18)], beside()) for _ in range(2))
    return first, second, hold


def drained(group: Any) -> bool:
    """Return whether all sums end within 30 s."""
    thread = threading.Thread(target=group.runner.drain, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


@pytest.mark.parametrize("how", ["work", "future", "result"])
def test_torch_a_callback_of_a_sum_may_wait_for_a_later_one(broken: Any, how: str) -> None:
    group = broken(Status.OK)
    first, second, hold = two_sums(group)
    wait = {"work": second.wait, "future": second.get_future().wait, "result": second.result}[how]
    chained = first.get_future().then(lambda _: [wait(), second.is_completed()][1])
    third = group.allreduce([torch.ones(1 << 18)], beside())
    hold.set()
    assert drained(group)
    assert chained.wait() and third.is_completed()


def test_torch_a_callback_that_waits_for_what_comes_of_a_later_sum_is_an_error(
    broken: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(_work, "_LIMIT_S", 0.4)
    group = broken(Status.OK)
    first, second, hold = two_sums(group)
    derived = second.get_future().then(lambda future: future.value())
    first.get_future().then(lambda _: derived.wait())
    hold.set()
    assert drained(group)
    with pytest.raises(UserError, match=r"later sums wait behind it \(1\)"):
        group.runner.settle()
    assert "let it wait for that sum's own work" in capfd.readouterr().err


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_torch_a_parameter_may_be_summed_beside_the_caller(broken: Any, mode: Any) -> None:
    group = broken()
    with mode():
        parameter = torch.ones(1 << 18, requires_grad=mode is torch.no_grad)
        group.allreduce([parameter], beside()).wait()
    group._engine.settle()
    assert group._engine.marked
    assert bool(torch.isfinite(parameter).all())


def test_torch_who_waits_for_a_result_gets_it_complete(broken: Any) -> None:
    for wait in ("result", "synchronize", "_end_coalescing"):
        group = broken(Status.OK)
        hold = threading.Event()
        work = group.runner.start(lambda hold=hold: hold.wait(30) and None, [])
        threading.Timer(0.1, hold.set).start()
        if wait == "_end_coalescing":
            group._end_coalescing(torch.device("cpu"))
        else:
            getattr(work, wait)()
        assert work.is_completed()


def test_torch_an_error_of_one_group_leaves_no_other_in_flight(broken: Any) -> None:
    bad, slow = broken(Status.MISMATCH), broken(Status.MISMATCH)
    hold = threading.Event()
    bad.allreduce([torch.ones(1 << 18)], beside())
    work = slow.runner.start(lambda: hold.wait(30) and None, [])
    threading.Timer(0.1, hold.set).start()
    with pytest.raises(PeerError):
        bad._engine.settle()
    assert work.is_completed()


def test_torch_the_thread_of_a_group_ends_with_it_and_holds_nothing(broken: Any) -> None:
    group = broken(Status.OK)
    tensor = torch.ones(1 << 18)
    gone = weakref.ref(tensor)
    group.allreduce([tensor], beside()).wait()
    group.runner.drain()
    thread = group.runner._thread
    del tensor
    group.shutdown()
    thread.join(30)
    assert not thread.is_alive()
    assert gone() is None


def test_torch_who_waits_for_all_sums_waits_until_their_thread_holds_nothing(broken: Any) -> None:
    class Lasting:
        def __del__(self) -> None:
            time.sleep(0.3)
            ends.append("gone")

    ends: list[str] = []
    group = broken(Status.OK)
    hold = threading.Event()
    first = group.runner.start(lambda: hold.wait(30) and None, [Lasting()])
    second = group.runner.start(lambda: None, [Lasting(), Lasting()])
    first.get_future().then(lambda _, wait=second.wait: wait())  # This carries the second out.
    del first, second
    hold.set()
    assert drained(group)
    assert ends == ["gone"] * 3


# The thread that sums lets go of a tensor of torch's, and of its memory, as the program ends.
ENDS = """
import sys, threading, time
import torch, torch.distributed as dist
import holdfast.torch as hf
from holdfast.torch import _engine

class Lasting(bytearray):
    def __del__(self):
        print("lets go", flush=True)
        time.sleep(1)

class End:
    def __del__(self, sleep=time.sleep):
        sleep(2)

sys.end = End()  # Python's own end lasts longer than that of the tensor.
hf.init()
(group,) = _engine.engine.groups
hold = threading.Event()
tensor = torch.frombuffer(Lasting(8), dtype=torch.int64)
group.runner.start(lambda: hold.wait(30) and None, [tensor])
del tensor
hold.set()
"""


def test_torch_a_program_may_end_while_a_sum_lets_go_of_its_tensors() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "lets go\n"
