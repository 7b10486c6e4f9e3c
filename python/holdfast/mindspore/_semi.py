"""Do by data parallel what semi-automatic parallel does where it is available.

On other devices, the compiler puts the exchange of gradients, the sum over micro batches and the
stages of a pipeline into the graph. On a CPU it does not and says nothing. Then ranks would drift
apart, or an optimizer would get zeros.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from mindspore import nn
from mindspore.ops.composite import base

from holdfast._errors import UserError
from holdfast._seat import Phase
from holdfast.mindspore import _exchanging, _operators
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._exchanging import Exchange, flag, take_rank_0s
from holdfast.mindspore._imported import imported

_UNSURE: Final = 2  # Updates in a row since which nothing was exchanged.


def _wait_for(weights: Sequence[Any]) -> None:
    for weight in weights:
        weight.asnumpy()


class Semi:
    """Knows whether a program asked for semi-automatic parallel, and where gradients come from."""

    def __init__(self, engine: Engine) -> None:
        """Begin as if the program had not asked for semi-automatic parallel."""
        self._engine = engine
        self.asked = False
        self._taken: dict[int, Any] = {}  # By id: parameters that have become rank 0's.
        self._counts = weakref.WeakKeyDictionary[
            Any, tuple[int, int]
        ]()  # By what updates: count at its last update; updates without exchange.
        # By the ids of the weights, which each exchange keeps alive: a program may ask for the
        # gradients of the same weights in each step.
        self._begun: dict[tuple[int, ...], Exchange] = {}
        self._waiting: dict[tuple[int, ...], Exchange] = {}

    @property
    def served(self) -> bool:
        """Whether parameter servers take the mean of all gradients."""
        return self._engine.served.all

    def ask(self, asked: bool) -> None:
        """Note whether the program asks for semi-automatic parallel now."""
        self.asked = asked
        if asked:
            waiting, self._waiting = self._waiting, {}
            for exchange in waiting.values():
                exchange.begin(self._engine)
            self._begun |= waiting
        else:
            self._begun = {}  # Until it is asked for again, ranks may drift apart.
            self._taken = {}
            self._counts = weakref.WeakKeyDictionary()

    def exchanged(self, gradient: Any, usual: Callable[..., Any], weights: Any) -> Any:
        """Return the function that a program gets when it asks for the gradients of weights."""
        if flag(gradient, "return_ids"):
            if self.asked:
                _exchanging.refuse_ids()
            return usual
        listed = weights if isinstance(weights, (list, tuple)) else (weights,)
        return _exchanging.exchanging(usual, self._exchange(listed), *_exchanging.shape(gradient))

    def updated(self, by: Any, weights: Sequence[Any]) -> None:
        """Note an update. UserError: nothing was exchanged for it, nor for the one before."""
        phase = self._engine.phase
        early = phase is Phase.EARLY and not self._engine.restarted
        if (
            not self.asked
            or self._engine.served.all
            or self._engine.rehearsing
            or not (early or phase is Phase.PLAIN)
        ):
            return
        before, unsure = self._counts.get(by, (-1, 0))
        now = _operators.count()
        unsure = unsure + 1 if now == before else 0
        if unsure == _UNSURE:  # The exchange may still be under way.
            _wait_for(weights)
            now = _operators.count()
            unsure = unsure if now == before else 0
        self._counts[by] = now, unsure
        if now == before and unsure == _UNSURE:
            raise UserError(
                "in semi-automatic parallel, an update was made of gradients that no rank has "
                "exchanged, so the ranks drift apart: make them by value_and_grad(function, None, "
                "weights), or give them to an nn.DistributedGradReducer(weights) before the "
                "optimizer"
            )

    def anonymous(self) -> Exchange:
        """Return an Exchange for gradients that a graph makes, of any weights."""
        exchange = Exchange(())
        exchange.begin(self._engine)
        return exchange

    def settle(self, weights: Sequence[Any]) -> None:
        """Let all ranks begin with rank 0's weights, if they have not begun yet."""
        new = [weight for weight in weights if id(weight) not in self._taken]
        self._taken |= {id(weight): weight for weight in new}
        take_rank_0s(self._engine, new)

    def _exchange(self, weights: Sequence[Any]) -> Exchange:
        key = tuple(map(id, weights))
        known = self._begun if self.asked else self._waiting  # AutoParallel(...) may follow.
        if key not in known:
            exchange = Exchange(weights)
            if self.asked:
                exchange.begin(self._engine)
            known[key] = exchange
        return known[key]


def _context_module() -> Any:
    return imported("mindspore.parallel._auto_parallel_context")


def apply(engine: Engine, semi: Semi) -> None:
    """Install all replacements."""
    if engine.world_size > 1:
        _gradients(semi)
    _auto_parallel()
    _micro_batches()
    _slices(engine, semi)
    # no_init_parameters() leaves it to AutoParallel's own compiler to initialise parameters. Here
    # they would stay zeros, so it has no effect.
    for name in ("mindspore.nn.utils", "mindspore.nn.utils.init"):
        imported(name).no_init_parameters = contextlib.nullcontext


def _gradients(semi: Semi) -> None:
    # value_and_grad, grad and GradOperation call these if they are called outside of a graph
    # (base.py:584). Within a graph, the compiler asks for them by name: see _in_graph.py.
    running = _Running()
    running.watch()
    for kind in (base._Grad, base.GradOperation):
        kind.__call__ = _asking(kind.__call__, semi, running)


def _asking(original: Callable[..., Any], semi: Semi, running: _Running) -> Callable[..., Any]:
    context = _context_module().auto_parallel_context()

    def call(self: Any, fn: Any, weights: Any = None, grad_position: Any = 0) -> Any:
        more = () if isinstance(self, base.GradOperation) else (grad_position,)
        usual = original(self, fn, weights, *more)
        by_hand = context.get_parallel_mode() == "data_parallel" and not semi.asked
        if (
            by_hand
            or semi.served
            or weights is None
            or flag(self, "pynative_")
            or running.reduces()
        ):
            return usual
        return semi.exchanged(self, usual, weights)

    return call


class _Running(threading.local):
    """The cells that are being called outside of a graph. The innermost is the last."""

    def __init__(self) -> None:
        self.cells: list[Any] = []

    def watch(self) -> None:
        """Watch each call of a cell."""
        usual = nn.Cell.__call__

        def call(cell: Any, *given: Any, **named: Any) -> Any:
            self.cells.append(cell)
            try:
                return usual(cell, *given, **named)
            finally:
                self.cells.pop()

        nn.Cell.__call__ = call

    def reduces(self) -> bool:
        """Return whether the innermost cell itself exchanges, as the cells that Model makes do."""
        return bool(self.cells) and _exchanging.reduces(self.cells[-1])


def _auto_parallel() -> None:
    kind = imported("mindspore.parallel.auto_parallel").AutoParallel
    usual = kind.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        usual(self, *given, **named)
        _context_module()._set_auto_parallel_context(parallel_mode="semi_auto_parallel")

    kind.__init__ = init


def _micro_batches() -> None:
    # cell_wrapper.py:643 and grad_reducer.py:502 give the optimizer a sum of the micro batches'
    # gradients, which the compiler is to make. On the CPU the sum stays zero.
    amp, reducers = imported("mindspore.train.amp"), imported("mindspore.nn.wrap.grad_reducer")

    def whole(network: Any, optimizer: Any, sens: float | None = None) -> Any:
        sizes = [c.micro_size for _, c in network.cells_and_names() if hasattr(c, "micro_size")]
        return nn.TrainOneStepCell(network, optimizer, sens or 1 / (sizes or [1])[0])

    amp._TrainGradAccuStepCell = whole
    usual = reducers.PipelineGradReducer.__init__

    def init(self: Any, parameters: Any, scale_sense: float = 1.0, opt_shard: Any = None) -> None:
        usual(self, parameters, scale_sense, True)  # True: use the gradients that it is given.

    reducers.PipelineGradReducer.__init__ = init


def _slices(engine: Engine, semi: Semi) -> None:
    module, amp = (
        imported("mindspore.parallel._auto_parallel_context"),
        imported("mindspore.train.amp"),
    )
    context, kind = module.auto_parallel_context(), module._AutoParallelContext
    usual, usual_accumulates = kind.set_dataset_strategy, amp._is_grad_accumulation
    staged = [False]
    whole = _whole_batches(semi)

    def set_strategy(self: Any, strategy: Any) -> None:
        parts = strategy if isinstance(strategy, tuple) else ()
        if any(isinstance(p, tuple) and any(n != 1 for n in p[1:]) for p in parts):
            raise UserError(
                f"dataset_strategy={strategy} gives each rank a slice of every sample, which needs "
                "sharded operators; here each rank computes whole samples: leave it out, and the "
                "slicing of the samples"
            )
        whole[0] = strategy == "full_batch"
        usual(self, "data_parallel" if whole[0] else strategy)

    def set_stages(self: Any, stages: int) -> None:
        staged[0] = stages > 1
        if staged[0]:
            engine.say_once("pipeline_stages has no effect: every rank computes all stages")

    def accumulates(cell: Any) -> bool:
        return staged[0] or bool(usual_accumulates(cell))

    amp._is_grad_accumulation = accumulates
    kind.set_dataset_strategy, kind.set_pipeline_stages = set_strategy, set_stages
    for name in ("dataset_strategy", "pipeline_stages"):
        module._set_auto_parallel_context_func_map[name] = getattr(context, f"set_{name}")


def _whole_batches(semi: Semi) -> list[bool]:
    """Make full_batch do nothing: all ranks read the same samples, so the mean is the same.

    In data parallel, the compiler refuses full_batch (_utils.py:198), and PyNative would divide
    gradients by the number of ranks (base.py:152) before their mean is taken. Return the list that
    holds the setting.
    """
    module = imported("mindspore.parallel._auto_parallel_context")
    context, kind = module.auto_parallel_context(), module._AutoParallelContext
    usual_reset, usual_strategy = kind.reset, kind.get_dataset_strategy
    whole = [False]

    def set_whole(self: Any, wanted: bool) -> None:
        whole[0] = wanted

    def get_whole(self: Any) -> bool:
        return whole[0] and not semi.asked

    def get_strategy(self: Any) -> Any:
        return "full_batch" if whole[0] else usual_strategy(self)

    def reset(self: Any) -> None:
        whole[0] = False
        usual_reset(self)

    kind.set_full_batch, kind.get_full_batch, kind.reset = set_whole, get_whole, reset
    kind.get_dataset_strategy = get_strategy
    module._set_auto_parallel_context_func_map["full_batch"] = context.set_full_batch
    getters = module._get_auto_parallel_context_func_map
    getters["full_batch"] = lambda: whole[0]  # A program asks this, to decide what to read.
    getters["dataset_strategy"] = context.get_dataset_strategy
    return whole
