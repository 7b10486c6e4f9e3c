"""DistributedGradReducer on Holdfast: one operator for all gradients, so that the order is fixed.

MindSpore's graph compiler reads the source of construct(), so it stands here alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import mindspore.common.dtype as mstype
from mindspore import Parameter, jit, ops
from mindspore.nn import Cell
from mindspore.nn.wrap.grad_reducer import DistributedGradReducer, _cast_datatype, _get_datatype
from mindspore.parallel._auto_parallel_context import auto_parallel_context
from mindspore.train.model import Model

from holdfast._abi import Op
from holdfast._errors import UserError
from holdfast.mindspore import _engine, _operators, _rehearsal


class _Building(threading.local):
    """Whether a Model is building its network; for each thread."""

    model = False


_building: Final = _Building()


def init(
    self: Any,
    parameters: Sequence[Any],
    mean: bool | None = None,
    degree: int | None = None,
    fusion_type: int = 1,
    group: str = "",
) -> None:
    """Replace DistributedGradReducer.__init__."""
    Cell.__init__(self, auto_prefix=False)
    engine = _engine.start()
    by_model = _building.model or engine.trains  # For a network of Model.train.
    if engine.rehearsing and not by_model:
        _rehearsal.stop_here(engine)
    size = len(engine.members(group))
    if mean is None:
        mean = auto_parallel_context().get_gradients_mean()
    if degree is not None and (not isinstance(degree, int) or degree <= 0):
        raise ValueError(
            f"For 'DistributedGradReducer', parameter 'degree' must be a whole number above 0, but "
            f"got {degree}."
        )
    if any(parameter.layerwise_parallel for parameter in parameters):
        raise UserError(
            "layerwise_parallel parameters are not there: every gradient is summed over all ranks"
        )
    factor = 1.0 / (degree or size) if mean else 1.0
    self.served = tuple(id(parameter) in engine.served.ids for parameter in parameters)
    self.any_served = any(self.served)
    self.mean, self.degree = mean, degree or size
    self.map_ = ops.Map()
    index = engine.use(group, by_model)
    if size == engine.world_size:
        engine.alike |= {id(p): p for p in parameters if id(p) not in engine.served.ids}
    self.exchange = _operators.reduce(index, size, Op.SUM, 0, factor, training=True)


@jit(backend="ms_backend")
def construct(self, grads):  # type: ignore[no-untyped-def]
    """Sum over the ranks in their order, in float32 as MindSpore does."""
    if self.any_served:
        return without_served(self, grads)  # type: ignore[no-untyped-call]
    return exchanged(self, grads)  # type: ignore[no-untyped-call]


def without_served(self, grads):  # type: ignore[no-untyped-def]
    """Exchange the gradients of those parameters that no parameter server keeps."""
    mine: Any = ()
    for i in range(len(grads)):
        if not self.served[i]:
            mine += (grads[i],)
    if len(mine) == 0:
        return grads
    mine = exchanged(self, mine)  # type: ignore[no-untyped-call]
    found: Any = ()
    at = 0
    for i in range(len(grads)):
        if self.served[i]:
            found += (grads[i],)
        else:
            found += (mine[at],)
            at += 1
    return found


def exchanged(self, grads):  # type: ignore[no-untyped-def]
    """Exchange gradients by one operator."""
    datatypes = self.map_(ops.partial(_get_datatype), grads)
    grads = self.map_(ops.partial(_cast_datatype, mstype.float32), grads)
    summed = self.exchange(*grads)
    if len(grads) == 1:
        summed = (summed,)
    return self.map_(ops.partial(_cast_datatype), datatypes, summed)


def call(self: Any, grads: Sequence[Any]) -> Any:
    """Replace DistributedGradReducer.__call__, which a graph that contains a reducer does not use.

    Accumulated gradients are Parameters, which a graph would take for its own parameters. So the
    graph gets the values of these.
    """
    return Cell.__call__(self, tuple(g.value() if isinstance(g, Parameter) else g for g in grads))


def apply() -> None:
    """Install all replacements."""
    usual = Model._build_train_network

    def build(self: Any) -> Any:
        _building.model = True
        try:
            return usual(self)
        finally:
            _building.model = False

    Model._build_train_network = build
    DistributedGradReducer.__init__ = init
    DistributedGradReducer.__call__ = call
    DistributedGradReducer.construct = construct
