"""Replace parts of MindSpore at its import; a comment at each says why that is necessary.

No file of the package is edited. Files and lines are those of 2.10.0; tried.json says which other
versions were tried.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast import _tried
from holdfast._abi import Op
from holdfast._errors import UserError
from holdfast._seat import Phase
from holdfast.mindspore import _operators, _train
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._imported import imported
from holdfast.mindspore._trainer import Trainer

_SEMI: Final = ("semi_auto_parallel", "auto_parallel", "hybrid_parallel")
_OPS: Final = {"sum": Op.SUM, "prod": Op.PRODUCT, "max": Op.MAX, "min": Op.MIN}


def apply(engine: Engine, trainer: Trainer) -> None:
    """Apply all shims."""
    version, works = str(imported("mindspore.version").__version__), _tried.working("mindspore")
    if refusal := _tried.refusal("mindspore", version):
        raise UserError(refusal)
    if _tried.minor(version) not in works:
        engine.say_once(
            f"mindspore {version} was not tried; those that were: {', '.join(works)}. What it has "
            "moved since will be reported as missing"
        )
    first = (use_cpu, _secure_channel, _parallel_mode, _cluster, _collectives, _gradients, _served)
    then: list[tuple[Any, Any]] = [(_steps, trainer), (_leaving, engine), (_saving, trainer)]
    for shim, of in [*((shim, engine) for shim in first), *then]:
        try:
            shim(of)
        except (AttributeError, ImportError, KeyError) as error:
            raise UserError(
                f"MindSpore {version} is not supported, for it lacks what one of the shims needs "
                f"({shim.__name__}: {error}); use {works[-1]}"
            ) from error
    if engine.tft:
        from holdfast.mindspore import _tft

        _tft.apply(trainer)


def use_cpu(engine: Engine | None) -> None:
    """Make MindSpore use the CPU. `engine`: says so to the user; None: say nothing."""

    # context.py:495 and device_manager.py:70 call this to ask whether to use the CPU instead of
    # `target`. Otherwise "Ascend" is a RuntimeError in the CPU package (ms_context.cc:291).
    def take_cpu(target: str) -> bool:
        if target in ("Ascend", "GPU"):
            if engine is not None:
                engine.say_once(f'device_target="{target}" was asked for; this runs on the CPU')
            return True
        return False

    imported("mindspore.context")._need_reset_device_target_for_ps = take_cpu
    imported("mindspore.device_manager")._need_reset_device_target_for_ps = take_cpu


def _secure_channel(engine: Engine) -> None:
    """Let set_ps_context put the job's connections under TLS."""
    imported("holdfast.mindspore._secure").apply(in_worker=not engine.job.solo)


def _parallel_mode(engine: Engine) -> None:
    """Keep the parallel mode in Python only, and treat all modes as data parallel."""
    # MindSpore's C++ part stays in stand-alone mode. In any other mode it needs a communicator of
    # MindSpore's own cluster, and on CPU there is none for semi-automatic parallel
    # (step_parallel_utils.cc:2387). Python reads the mode by _get_parallel_mode() alone.
    module = imported("mindspore.parallel._auto_parallel_context")
    context, kind = module.auto_parallel_context(), module._AutoParallelContext
    usual_reset = kind.reset
    semi = imported("holdfast.mindspore._semi").Semi(engine)
    usual_mean = kind.set_gradients_mean
    contexts = imported("mindspore.context")
    usual_by_program = contexts._reset_auto_parallel_context
    mode = ["stand_alone"]

    def set_mode(self: Any, wanted: str) -> None:
        if wanted not in ("stand_alone", "data_parallel", *_SEMI):
            raise ValueError(
                f"The context configuration parameter 'parallel_mode' is '{wanted}'; allowed are "
                "'stand_alone', 'data_parallel', 'hybrid_parallel', 'semi_auto_parallel' and "
                "'auto_parallel'."
            )
        mode[0] = wanted
        if wanted in _SEMI:
            engine.say_once(
                f'parallel_mode="{wanted}" is made data parallel with the mean of gradients, which '
                "is the same mathematics where nothing is sharded"
            )
            mode[0] = "data_parallel"
            usual_mean(self, True)
        semi.ask(wanted in _SEMI)

    def reset(self: Any) -> None:
        mode[0] = "stand_alone"
        usual_reset(self)

    def reset_by_program() -> None:  # Not reset(): MindSpore calls that after compiling.
        usual_by_program()
        semi.ask(False)

    def no_shards(self: Any, wanted: object) -> None:
        if wanted:
            engine.say_once("enable_parallel_optimizer has no effect: every rank updates all")

    def set_mean(self: Any, wanted: bool) -> None:
        # In semi-automatic parallel a loss is divided by the ranks if gradients are summed.
        usual_mean(self, wanted or semi.asked)

    kind.set_parallel_mode, kind.get_parallel_mode = set_mode, lambda self: mode[0]
    kind.set_enable_parallel_optimizer, kind.reset = no_shards, reset
    kind.set_gradients_mean = set_mean
    contexts._reset_auto_parallel_context = reset_by_program
    for name, setter in (
        ("gradients_mean", context.set_gradients_mean),
        ("parallel_mode", context.set_parallel_mode),
        ("enable_parallel_optimizer", context.set_enable_parallel_optimizer),
    ):
        module._set_auto_parallel_context_func_map[name] = setter
    module._get_auto_parallel_context_func_map["parallel_mode"] = context.get_parallel_mode
    imported("holdfast.mindspore._semi").apply(engine, semi)
    if engine.world_size > 1:
        imported("holdfast.mindspore._in_graph").apply(semi, engine.numbers)


def _cluster(engine: Engine) -> None:
    """Answer init(), and questions about ranks and groups."""
    # MindSpore's own cluster ends the job at every lost worker (12 of 12 trials, after 33 s), and a
    # rank that waits in its collectives can not be freed. So the cluster is never started.
    # management.py imports these helpers by name and calls them by that, so replace them in both.
    helpers = imported("mindspore.communication._comm_helper")
    management = imported("mindspore.communication.management")
    world = helpers.MCCL_WORLD_COMM_GROUP

    def init(backend_name: str | None = None) -> None:
        if backend_name not in (None, "hccl", "nccl", "mccl"):
            raise RuntimeError(
                "For 'init', the argument 'backend_name' must be one of 'hccl', 'nccl' and 'mccl', "
                f"but got 'backend_name' : {backend_name}"
            )
        imported("holdfast.mindspore._secure").check()
        helpers.GlobalComm.BACKEND = helpers.Backend("mccl")
        helpers.GlobalComm.WORLD_COMM_GROUP = world
        helpers.GlobalComm.INITED = True

    def rank(group: str) -> int:
        members = engine.members(group)
        if engine.rank not in members:
            raise RuntimeError(f"rank {engine.rank} is not in group '{group}'")
        return members.index(engine.rank)

    def world_rank(group: str, group_rank_id: int) -> int:
        members = engine.members(group)
        if not 0 <= group_rank_id < len(members):
            raise ValueError(f"group '{group}' has no rank {group_rank_id}")
        return members[group_rank_id]

    def group_rank(world_rank_id: int, group: str) -> int:
        members = engine.members(group)
        if world_rank_id not in members:
            raise ValueError(f"rank {world_rank_id} is not in group '{group}'")
        return members.index(world_rank_id)

    def create(group: str, rank_ids: Sequence[int], options: object = None) -> None:
        engine.create_group(group, rank_ids)

    replacements: dict[str, Callable[..., Any]] = {
        "_get_rank_helper": rank,
        "_get_local_rank_helper": rank,
        "_get_size_helper": lambda group: len(engine.members(group)),
        "_get_local_size_helper": lambda group: len(engine.members(group)),
        "_get_world_rank_from_group_rank_helper": world_rank,
        "_get_group_rank_from_world_rank_helper": group_rank,
        "_create_group_helper": create,
        "_destroy_group_helper": lambda group: None,
        "_get_comm_name_helper": lambda group: group,
        "_get_group_ranks": lambda group: list(engine.members(group)),
    }
    for module in (helpers, management):
        for name, function in replacements.items():
            getattr(module, name)
            setattr(module, name, function)
    for module in (management, imported("mindspore.communication")):
        module.init, module.release = init, lambda: None


def _collectives(engine: Engine) -> None:
    """Replace the collective operators."""
    # MindSpore's operators ask for a communicator of its cluster when they are compiled. Programs
    # find these classes in mindspore.ops, and modules imported later find them in the other two.
    grad = imported("mindspore.ops._grad_experimental.grad_comm_ops")
    assert grad  # It registers gradients of the usual classes: import it before these are replaced.

    # Classes, not functions: a graph's text may make an operator, and the compiler wants a class.
    custom: Any = imported("mindspore.ops").Custom

    class AllReduce(custom):  # type: ignore[misc]
        def __init__(self, op: str = "sum", group: str = "") -> None:
            kind, number = _reduction(engine, group, "AllReduce", op)
            index, size = engine.use(group), len(engine.members(group))
            _operators.reduce(index, size, kind, number, into=self)

    class AllGather(custom):  # type: ignore[misc]
        def __init__(self, group: str = "") -> None:
            number = _number(engine, group, "AllGather")
            index, (place, size) = engine.use(group), engine.place_in(group)
            _operators.gather(index, size, place, number, self)

    class ReduceScatter(custom):  # type: ignore[misc]
        def __init__(self, op: str = "sum", group: str = "") -> None:
            kind, number = _reduction(engine, group, "ReduceScatter", op)
            index, (place, size) = engine.use(group), engine.place_in(group)
            _operators.scatter(index, size, place, kind, number, self)

    class Broadcast(imported("holdfast.mindspore._broadcast").Broadcast):  # type: ignore[misc]
        def __init__(self, root_rank: int, group: str = "") -> None:
            number = _number(engine, group, "Broadcast", root_rank)
            index, size = engine.use(group), len(engine.members(group))
            super().__init__(_operators.broadcast(index, size, root_rank, number))

    made = (AllReduce, AllGather, ReduceScatter, Broadcast)
    names = ("mindspore.ops.operations.comm_ops", "mindspore.ops.operations", "mindspore.ops")
    for module in map(imported, names):
        for kind in made:
            getattr(module, kind.__name__)
            setattr(module, kind.__name__, kind)
    grad_reducer = imported("mindspore.nn.wrap.grad_reducer")
    grad_reducer.AllReduce, grad_reducer.AllGather = AllReduce, AllGather

    # parameter_broadcast=True gives all ranks rank 0's parameters when a graph is compiled
    # (api.py:1548), but a successor compiles alone. In a protected training, all ranks began with
    # rank 0's parameters, and those that differ since then are to differ (moving averages).
    wrapper = imported("mindspore.nn.wrap.cell_wrapper")
    usual = wrapper._BroadCastCell

    def broadcast_cell(parameters: list[Any]) -> Any:
        if engine.phase in (Phase.ECHO, Phase.LIVE):
            return imported("holdfast.mindspore._broadcast").NoBroadcast()
        return usual(parameters)

    wrapper._BroadCastCell = broadcast_cell


def _number(engine: Engine, group: str, *kind: Any) -> int:
    """Return the number of an operator that a script makes."""
    _operators.in_one_order()
    return engine.number(group, *kind)


def _reduction(engine: Engine, group: str, name: str, op: str) -> tuple[Op, int]:
    """Return the operation and the number of a reducing operator that a script makes."""
    if op not in _OPS:
        raise UserError(f"{name} has no operation '{op}'; it has {', '.join(_OPS)}")
    return _OPS[op], _number(engine, group, name, op)


def _gradients(engine: Engine) -> None:
    """Exchange gradients by one operator."""
    # Separate operators could run in different orders on different ranks.
    imported("holdfast.mindspore._reducer").apply()


def _served(engine: Engine) -> None:
    """Let parameter servers keep and update parameters."""
    # MindSpore 2.10 has lost set_param_ps(), and with it what its servers did.
    imported("holdfast.mindspore._served_optimizers").apply(engine)


def _steps(trainer: Trainer) -> None:
    """Protect the loop of Model.train."""
    # On CPU sink mode is ignored, so _train_process is the only loop (model.py:1090).
    model = imported("mindspore.train.model").Model
    original = model._train_process

    def train_process(self: Any, *given: Any, **named: Any) -> None:
        _train.train_process(trainer, original, self, *given, **named)

    usual_eval = model.eval

    @functools.wraps(usual_eval)
    def evaluate(self: Any, *given: Any, **named: Any) -> Any:
        return trainer.evaluate(lambda: usual_eval(self, *given, **named))

    model._train_process, model.eval = train_process, evaluate
    # In training, a Guard replaces the network. A callback that saves has to get the network.
    usual = model.train_network
    model.train_network = property(lambda self: _train.guarded(usual.fget(self)), usual.fset)


def _leaving(engine: Engine) -> None:
    """Let all ranks leave a training together when a user asks for it."""
    imported("holdfast.mindspore._leaving").apply(engine)


def _saving(trainer: Trainer) -> None:
    """Keep checkpoints that were written between calls of Model.train."""
    imported("holdfast.mindspore._saving").apply(trainer)
