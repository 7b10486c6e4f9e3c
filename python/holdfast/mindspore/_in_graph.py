"""Exchange gradients that a graph makes itself, in semi-automatic parallel.

MindSpore's compiler asks Python for each name that it meets, and for each object that a graph
makes. If that thing gives the gradients of weights, the answer is a function that gives the mean of
these gradients over all ranks. The compiler reads that function's source like the program's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from mindspore import nn
from mindspore.ops.composite import base
from mindspore.ops.primitive import constexpr

from holdfast.mindspore import _operators
from holdfast.mindspore._exchanging import Exchange, flag, placed, reduces, refuse_ids, shape
from holdfast.mindspore._imported import COMPILERS, either, imported
from holdfast.mindspore._semi import Semi

# New and old name of the module.
_PARSERS: Final = ("mindspore.graph._parse", "mindspore._extends.parse")
# Modules whose names are answered as usual. In the first, gradients asked for outside of graphs
# (base.py: after_grad) are exchanged by the caller; the second holds the functions given here.
_LEFT_ALONE: Final = ("mindspore.ops.composite", "holdfast.mindspore")


def _operator(
    gradient: Any, mean: Exchange, value: bool, rest: bool, both: bool
) -> Callable[..., Any]:
    def operator(fn, *which):  # type: ignore[no-untyped-def]
        def exchanged(*args, **kwargs):  # type: ignore[no-untyped-def]
            return placed(gradient(fn, *which)(*args, **kwargs), mean, value, rest, both)

        return exchanged

    return operator


_refuse_ids_here = constexpr(refuse_ids)


def _maker(make: Any, mean: Exchange) -> Callable[..., Any]:
    """Return a replacement of _get_grad_op, by which grad and value_and_grad make operators."""

    def made(*flags):  # type: ignore[no-untyped-def]
        listed, both, rest, value, ids = flags[:5]
        if listed and ids:
            _refuse_ids_here()

        def operator(fn, *which):  # type: ignore[no-untyped-def]
            def exchanged(*args, **kwargs):  # type: ignore[no-untyped-def]
                out = make(*flags)(fn, *which)(*args, **kwargs)
                if listed:
                    return placed(out, mean, value, rest, both)
                return out

            return exchanged

        return operator

    return made


# ---- Answers to the compiler --------------------------------------------------------------------


class _Answers:
    """Answers the compiler when it asks for names."""

    def __init__(self, semi: Semi) -> None:
        self._semi = semi
        self._made: dict[int, tuple[Any, Any]] = {}  # By id of the original: it and its stand-in.
        self._get_grad_op = imported("mindspore.ops.function.grad.grad_func")._get_grad_op
        other = imported("mindspore.experimental.optim.optimizer").Optimizer
        self.optimizers = (nn.Optimizer, other)
        self.exchanges = False  # The graph being compiled has a stand-in.
        self.updates = False  # The graph being compiled has an optimizer.

    @property
    def _exchanges_all(self) -> bool:
        return self._semi.asked and not self._semi.served

    def answer(self, namespace: Any, found: Any) -> Any:
        """Return what a name stands for: `found`, or a stand-in for it."""
        if isinstance(found, self.optimizers):
            self.updates = True
        if not self._exchanges_all or namespace.name.startswith(_LEFT_ALONE):
            return found
        if isinstance(found, (base.GradOperation, base._Grad)):
            owner = namespace.dicts[0] if hasattr(namespace, "dicts") else None
            if isinstance(owner, nn.Cell) and reduces(owner):
                return found
            return self.stand_in(found)
        return self._stand_in(found, _maker) if found is self._get_grad_op else found

    def stand_in(self, found: Any) -> Any:
        """Return the stand-in for an object that gives gradients of weights; else the object."""
        if not isinstance(found, (base.GradOperation, base._Grad)):
            return found
        if not (self._exchanges_all and found.get_by_list):
            return found
        if flag(found, "return_ids"):
            refuse_ids()
        return self._stand_in(found, lambda o, mean: _operator(o, mean, *shape(o)))

    def _stand_in(self, found: Any, make: Callable[[Any, Exchange], Any]) -> Any:
        self.exchanges = True
        if id(found) not in self._made:
            self._made[id(found)] = found, make(found, self._semi.anonymous())
        return self._made[id(found)][1]


class _Graphs:
    """Knows which graphs update weights, and has those that exchange begin with rank 0's."""

    def __init__(self, semi: Semi, answers: _Answers, numbers: _operators.Numbers) -> None:
        self._semi, self._answers, self._numbers = semi, answers, numbers
        self._optimizers: list[weakref.ref[Any]] = []  # In the order in which they were made.

    def compile(self, usual: Callable[[], Any], cell: Any) -> tuple[Any, bool]:
        """Compile a graph; return the result, and whether the graph updates weights."""
        answers = self._answers
        answers.exchanges = answers.updates = False
        with self._numbers.of_a_graph():
            result = usual()
        updates = answers.updates
        if answers.exchanges:
            weights = {id(w): w for w in self._weights()}
            if isinstance(cell, nn.Cell):
                weights |= {id(w): w for w in cell.trainable_params()}
            self._semi.settle(list(weights.values()))
        return result, updates

    def _weights(self) -> list[Any]:
        alive = [o for o in (known() for known in self._optimizers) if o is not None]
        return [weight for optimizer in alive for weight in optimizer.parameters]

    def watch(self, kind: Any) -> None:
        """Watch each call of optimizers of class `kind`."""
        usual = kind.__init__

        def init(optimizer: Any, *given: Any, **named: Any) -> None:
            usual(optimizer, *given, **named)
            self._optimizers.append(weakref.ref(optimizer))

        def call(optimizer: Any, *given: Any, **named: Any) -> Any:
            result = nn.Cell.__call__(optimizer, *given, **named)
            self._semi.updated(optimizer, optimizer.parameters)
            return result

        kind.__init__, kind.__call__ = init, call

    def watch_cells(self) -> None:
        """Watch each graph of a cell."""
        usual, usual_run = nn.Cell.compile, nn.Cell.compile_and_run
        updating = weakref.WeakSet[Any]()

        def compiled(cell: Any, *given: Any, **named: Any) -> Any:
            result, updates = self.compile(lambda: usual(cell, *given, **named), cell)
            if updates:
                updating.add(cell)
            return result

        def run(cell: Any, *given: Any, **named: Any) -> Any:
            result = usual_run(cell, *given, **named)
            if cell in updating:
                self._semi.updated(cell, self._weights())
            return result

        nn.Cell.compile, nn.Cell.compile_and_run = compiled, run

    def watch_functions(self) -> None:
        """Watch each graph of a function."""
        kind = either(COMPILERS)._JitExecutor
        usual, usual_call = kind.compile, kind.__call__
        updating: dict[str, _Phase] = {}

        def compiled(executor: Any, *given: Any, **named: Any) -> Any:
            phase, updates = self.compile(lambda: usual(executor, *given, **named), executor.obj)
            if updates:
                updating[phase] = _Phase()
            executor.compiled_phase = phase
            return phase

        def call(executor: Any, *given: Any, **named: Any) -> Any:
            result = usual_call(executor, *given, **named)
            if phase := updating.get(getattr(executor, "compiled_phase", "")):
                self._semi.updated(phase, self._weights())
            return result

        kind.compile, kind.__call__ = compiled, call


class _Phase:
    """Stands for one graph of a function."""


def apply(semi: Semi, numbers: _operators.Numbers) -> None:
    """Put the answers into the compiler, and watch graphs and optimizers."""
    answers, parser = _Answers(semi), either(_PARSERS)
    usual_name, usual_object = parser.resolve_symbol, parser.create_instance

    def resolve_symbol(namespace: Any, symbol: str) -> Any:
        return answers.answer(namespace, usual_name(namespace, symbol))

    def create_instance(*given: Any) -> Any:
        return answers.stand_in(usual_object(*given))

    parser.resolve_symbol, parser.create_instance = resolve_symbol, create_instance
    graphs = _Graphs(semi, answers, numbers)
    for kind in answers.optimizers:
        graphs.watch(kind)
    graphs.watch_cells()
    graphs.watch_functions()
