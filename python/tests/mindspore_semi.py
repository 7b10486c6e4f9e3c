"""Loops for semi-automatic parallel, as the documents write them, against loops with a reducer.

Each rank prints which loops ended with the parameters of a data parallel loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.communication import get_rank, init
from mindspore.nn.utils import no_init_parameters
from mindspore.parallel.auto_parallel import AutoParallel

from holdfast.mindspore import _operators, _semi

ms.set_context(mode=ms.GRAPH_MODE)
init()
draw = np.random.default_rng(get_rank())
INPUTS = [ms.Tensor(draw.random((8, 6), np.float32)) for _ in range(4)]
TARGETS = [ms.Tensor(draw.integers(0, 3, 8).astype(np.int32)) for _ in range(4)]
LOSS = nn.CrossEntropyLoss()
made: list[Any] = []  # One entry for each Exchange.
usual = _semi.Exchange.__init__


def counted(self: Any, weights: Any) -> None:
    made.append(len(weights))
    usual(self, weights)


_semi.Exchange.__init__ = counted  # type: ignore[method-assign]


def parts(seed: int = 1) -> tuple[Any, Any, Any]:
    """Return a network, its optimizer, and what gives its gradients."""
    ms.set_seed(seed)
    net = nn.SequentialCell(nn.Dense(6, 5, weight_init="normal"), nn.ReLU(), nn.Dense(5, 3))
    optimizer = nn.Momentum(net.trainable_params(), 0.5, 0.9)

    def forward(data, target):  # type: ignore[no-untyped-def]
        logits = net(data)
        return LOSS(logits, target), logits

    gradients = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
    return net, optimizer, gradients


def stepper(optimizer: Any, gradients: Any) -> Any:
    """Return a step as the documents write it, without any exchange."""

    def step(data, target):  # type: ignore[no-untyped-def]
        (loss, _), grads = gradients(data, target)
        optimizer(grads)
        return loss

    return step


def trained(net: Any, step: Callable[..., Any]) -> list[Any]:
    net.set_train()
    for data, target in zip(INPUTS, TARGETS):
        step(data, target)
    return [parameter.asnumpy().copy() for parameter in net.trainable_params()]


def by_reducer() -> list[Any]:
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    net, optimizer, gradients = parts()
    reducer = nn.DistributedGradReducer(optimizer.parameters)

    def step(data: Any, target: Any) -> None:
        _, grads = gradients(data, target)
        optimizer(reducer(grads))

    return trained(net, step)


def by_jit() -> list[Any]:
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    net, optimizer, gradients = parts(seed=1 + get_rank())  # All begin with rank 0's values.
    return trained(net, ms.jit(stepper(optimizer, gradients)))


def by_itself() -> list[Any]:
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(gradients_mean=False)
    print("MEAN", ms.get_auto_parallel_context("gradients_mean"), flush=True)
    net, optimizer, gradients = parts()
    return trained(net, stepper(optimizer, gradients))


def by_auto_parallel() -> list[Any]:
    ms.reset_auto_parallel_context()
    with no_init_parameters():
        net, optimizer, gradients = parts()
    step = AutoParallel(stepper(optimizer, gradients), parallel_mode="semi_auto")
    return trained(net, step)


def by_hand_in_pynative() -> list[Any]:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", gradients_mean=False)
    net, optimizer, gradients = parts()
    found = trained(net, stepper(optimizer, gradients))
    ms.set_context(mode=ms.GRAPH_MODE)
    return found


def late(mode: int) -> list[Any]:
    ms.set_context(mode=mode)
    ms.reset_auto_parallel_context()
    net, optimizer, gradients = parts()
    _, grads = gradients(INPUTS[0], TARGETS[0])
    optimizer(tuple(ops.zeros_like(grad) for grad in grads))  # Before the mode is set.
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    found = trained(net, stepper(optimizer, gradients))
    ms.set_context(mode=ms.GRAPH_MODE)
    return found


def by_late_in_graph() -> list[Any]:
    return late(ms.GRAPH_MODE)


def by_late_in_pynative() -> list[Any]:
    return late(ms.PYNATIVE_MODE)


def by_grad_operation() -> list[Any]:
    ms.set_auto_parallel_context(parallel_mode="auto_parallel", gradients_mean=False)
    net, optimizer, _ = parts()
    loss_net = nn.WithLossCell(net, LOSS)
    gradients = ops.GradOperation(get_by_list=True)(loss_net, optimizer.parameters)
    return trained(net, lambda data, target: optimizer(gradients(data, target)))


def by_each_step(mode: str = "semi_auto_parallel") -> list[Any]:
    ms.set_auto_parallel_context(parallel_mode=mode)
    before = len(made)
    net, optimizer, _ = parts()
    loss_net, gradient = nn.WithLossCell(net, LOSS), ops.GradOperation(get_by_list=True)
    weights = optimizer.parameters

    def step(data: Any, target: Any) -> None:
        optimizer(gradient(loss_net, weights)(data, target))

    found = trained(net, step)
    print("MADE", mode, len(made) - before, flush=True)
    return found


def by_each_step_alone() -> list[Any]:
    return by_each_step("stand_alone")


class Own(nn.Cell):  # type: ignore[misc]
    """A cell that makes gradients and updates by them, with and without a reducer."""

    def __init__(self, network: Any, optimizer: Any, reducer: Any) -> None:
        """`reducer`: nn.Identity() for none."""
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.reducer = network, optimizer, reducer
        self.weights = optimizer.parameters
        self.gradient = ops.GradOperation(get_by_list=True)

    def construct(self, data, target):  # type: ignore[no-untyped-def]
        grads = self.gradient(self.network, self.weights)(data, target)
        return self.optimizer(self.reducer(grads))


def own(reduces: bool) -> list[Any]:
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    net, optimizer, _ = parts()
    reducer = nn.DistributedGradReducer(optimizer.parameters) if reduces else nn.Identity()
    return trained(net, Own(nn.WithLossCell(net, LOSS), optimizer, reducer))


def by_own_cell_in_pynative() -> list[Any]:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    found = own(reduces=False)
    ms.set_context(mode=ms.GRAPH_MODE)
    return found


def by_own_cell_with_reducer() -> list[Any]:
    return own(reduces=True)


def by_own_cell_without() -> list[Any]:
    return own(reduces=False)


def forward_value_and_grad(mode: int) -> list[Any]:
    ms.set_context(mode=mode)
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    net, optimizer, _ = parts()
    weights = optimizer.parameters
    gradients = nn.ForwardValueAndGrad(nn.WithLossCell(net, LOSS), weights, get_by_list=True)
    found = trained(net, lambda data, target: optimizer(gradients(data, target)[1]))
    ms.set_context(mode=ms.GRAPH_MODE)
    return found


def by_forward_value_and_grad() -> list[Any]:
    return forward_value_and_grad(ms.GRAPH_MODE)


def by_forward_value_and_grad_in_pynative() -> list[Any]:
    return forward_value_and_grad(ms.PYNATIVE_MODE)


class Within(nn.Cell):  # type: ignore[misc]
    """A cell that asks for gradients in its construct(), by one of several functions."""

    def __init__(self, network: Any, optimizer: Any, way: str) -> None:
        """`way`: the function that is used."""
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.way = network, optimizer, way
        self.weights = optimizer.parameters

    def construct(self, data, target):  # type: ignore[no-untyped-def]
        if self.way == "both":
            _, (_, grads) = ms.value_and_grad(self.network, 0, self.weights)(data, target)
        else:
            _, grads = ops.GradOperation(get_all=True, get_by_list=True)(
                self.network, self.weights
            )(data, target)
        return self.optimizer(grads)


def within(way: str) -> list[Any]:
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    net, optimizer, _ = parts(seed=1 + get_rank())
    return trained(net, Within(nn.WithLossCell(net, LOSS), optimizer, way))


def by_both_within() -> list[Any]:
    return within("both")


def by_grad_operation_within() -> list[Any]:
    return within("GradOperation")


def by_value_and_grad_in_jit_in_pynative() -> list[Any]:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    net, optimizer, _ = parts(seed=1 + get_rank())
    loss_net, weights = nn.WithLossCell(net, LOSS), optimizer.parameters

    @ms.jit  # type: ignore[untyped-decorator]
    def step(data, target):  # type: ignore[no-untyped-def]
        _, grads = ms.value_and_grad(loss_net, None, weights)(data, target)
        return optimizer(grads)

    found = trained(net, step)
    ms.set_context(mode=ms.GRAPH_MODE)
    return found


class OneStep(nn.TrainOneStepCell):  # type: ignore[misc]
    """A class that a program derives from TrainOneStepCell, as in the documents."""

    def construct(self, data, target):  # type: ignore[no-untyped-def]
        loss = self.network(data, target)
        grads = self.grad_reducer(self.grad_no_sens(self.network, self.weights)(data, target))
        return ops.depend(loss, self.optimizer(grads))


def one_step(mode: int, parallel: str) -> list[Any]:
    ms.set_context(mode=mode)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode=parallel, gradients_mean=True)
    net, optimizer, _ = parts()
    step = OneStep(nn.WithLossCell(net, LOSS), optimizer)
    found = trained(net, step)
    before = _operators.count()
    step(INPUTS[0], TARGETS[0])
    ms.runtime.synchronize()
    print("EXCHANGES", parallel, _operators.count() - before, flush=True)
    ms.set_context(mode=ms.GRAPH_MODE)
    return found


def by_one_step_cell_in_pynative() -> list[Any]:
    return one_step(ms.PYNATIVE_MODE, "semi_auto_parallel")


def by_one_step_cell_data_parallel() -> list[Any]:
    return one_step(ms.PYNATIVE_MODE, "data_parallel")


def unknown(in_graph: bool) -> None:
    """Update by gradients that are never exchanged."""
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    net, optimizer, _ = parts()
    grads = tuple(ops.ones_like(weight) for weight in net.trainable_params())

    def update():  # type: ignore[no-untyped-def]
        return optimizer(grads)

    step = ms.jit(update) if in_graph else update
    for _ in range(3):
        step()
        print("STEP", in_graph, flush=True)


def by_micro_batches() -> list[Any]:
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", pipeline_stages=2)
    net, optimizer, _ = parts()
    model = ms.Model(nn.PipelineCell(nn.WithLossCell(net, LOSS), 2), optimizer=optimizer)
    return trained(net, model.train_network)


def by_whole_batches(mode: int = ms.GRAPH_MODE) -> list[Any]:
    ms.set_context(mode=mode)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
    asked = [ms.get_auto_parallel_context(name) for name in ("full_batch", "dataset_strategy")]
    print("WHOLE", *asked, flush=True)
    net, optimizer, gradients = parts()
    found = trained(net, stepper(optimizer, gradients))
    net(INPUTS[0])  # Compiles the cell by itself.
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_auto_parallel_context(dataset_strategy="data_parallel")
    print("WHOLE", ms.get_auto_parallel_context("full_batch"), flush=True)
    return found


def by_whole_batches_in_pynative() -> list[Any]:
    return by_whole_batches(ms.PYNATIVE_MODE)


wanted = by_reducer()
for way in (
    by_jit,
    by_itself,
    by_auto_parallel,
    by_hand_in_pynative,
    by_grad_operation,
    by_each_step,
    by_each_step_alone,
    by_own_cell_in_pynative,
    by_late_in_graph,
    by_late_in_pynative,
    by_whole_batches,
    by_whole_batches_in_pynative,
    by_micro_batches,
    by_own_cell_with_reducer,
    by_own_cell_without,
    by_forward_value_and_grad,
    by_forward_value_and_grad_in_pynative,
    by_both_within,
    by_grad_operation_within,
    by_value_and_grad_in_jit_in_pynative,
    by_one_step_cell_in_pynative,
    by_one_step_cell_data_parallel,
):
    found = way()
    near = all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted))
    print("SAME" if near else "OTHER", way.__name__, flush=True)
for in_graph in (False, True):
    try:
        unknown(in_graph)
    except Exception as error:
        print("ENDED", error, flush=True)
try:
    ms.set_auto_parallel_context(dataset_strategy=((1, 4), (1,)))
except Exception as error:
    print("REFUSED", error, flush=True)
