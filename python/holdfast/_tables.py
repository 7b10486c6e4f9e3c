"""Tables of parameter servers: how a face describes and uses them (include/holdfast/c.h)."""

from __future__ import annotations

import ctypes as c
import enum
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast._abi import U64, CTable, DType, check, lib
from holdfast._core import Session
from holdfast._errors import UserError


class Rule(enum.IntEnum):
    """By which rule a table's rows are updated. table/rules.h has the formulas."""

    SGD = 0
    MOMENTUM = 1
    ADAGRAD = 2
    ROW_ADAGRAD = 3
    ADAM = 4
    ADAMW = 5
    FTRL = 6


class Initial(enum.IntEnum):
    """How a row begins that nobody has written."""

    CONSTANT = 0
    UNIFORM = 1
    NORMAL = 2


@dataclass(frozen=True)
class Optimizer:
    """A rule and its numbers, but for those that may change from step to step."""

    rule: Rule
    mindspore: bool = False
    nesterov: bool = False
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    l1: float = 0.0
    l2: float = 0.0
    initial_accumulator: float = 0.0


@dataclass(frozen=True)
class Spec:
    """What a table is."""

    name: str
    values: int
    optimizer: Optimizer
    initial: Initial = Initial.CONSTANT
    initial_a: float = 0.0
    initial_b: float = 0.0
    seed: int = 0
    dtype: DType = DType.FLOAT32


@dataclass(frozen=True)
class _Named:
    rule: Rule
    options: Mapping[str, float]  # Their names in torch.optim, with their usual values.
    fixed: Mapping[str, bool] = field(default_factory=dict)


_ADAM: Final = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_KNOWN: Final = {
    "sgd": _Named(Rule.SGD, {}),
    "momentum": _Named(Rule.MOMENTUM, {"momentum": 0.9, "nesterov": 0.0}),
    "adagrad": _Named(Rule.ADAGRAD, {"eps": 1e-10, "initial_accumulator_value": 0.0}),
    "row_adagrad": _Named(Rule.ROW_ADAGRAD, {"eps": 1e-8, "initial_accumulator_value": 0.0}),
    "adam": _Named(Rule.ADAM, _ADAM),
    "sparse_adam": _Named(Rule.ADAM, _ADAM, {"mindspore": True}),
    "adamw": _Named(Rule.ADAMW, _ADAM),
    "ftrl": _Named(Rule.FTRL, {"l1": 0.0, "l2": 0.0, "initial_accumulator_value": 0.1}),
}


def optimizer_named(name: str, options: Mapping[str, float]) -> Optimizer:
    """Return the optimizer of this name. UserError: there is none, or it has no such option."""
    known = _KNOWN.get(name)
    if known is None:
        raise UserError(f"there is no optimizer {name!r} for a table; there are {_list(_KNOWN)}")
    if unknown := sorted(set(options) - set(known.options)):
        raise UserError(
            f"the optimizer {name!r} of a table has no option {unknown[0]!r}; its options are "
            f"{_list(known.options) or 'none'}"
        )
    for option, value in options.items():
        if not math.isfinite(value):
            raise UserError(f"the option {option!r} of {name!r} is {value}: a number is expected")
    at = {**known.options, **options}
    return Optimizer(
        rule=known.rule,
        mindspore=known.fixed.get("mindspore", False),
        nesterov=bool(at.get("nesterov", 0)),
        momentum=at.get("momentum", 0.0),
        beta1=at.get("beta1", 0.9),
        beta2=at.get("beta2", 0.999),
        epsilon=at.get("eps", 1e-8),
        l1=at.get("l1", 0.0),
        l2=at.get("l2", 0.0),
        initial_accumulator=at.get("initial_accumulator_value", 0.0),
    )


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names)


def load_tables(session: Session, folder: str) -> None:
    """Have the tables begin with the rows saved in a folder. Before join(), alike on all ranks."""
    check(lib.hf_tables_load(session.handle, os.fsencode(folder)))


def save_tables(session: Session, folder: str) -> int:
    """Have the servers save the rows of version() in a folder; return the status."""
    status: int = lib.hf_tables_save(session.handle, os.fsencode(folder))
    return status


class Table:
    """A table as a session knows it. Addresses are those of dense memory."""

    def __init__(self, session: Session, spec: Spec) -> None:
        """Define the table. All ranks define the same ones in the same order, before join()."""
        o = spec.optimizer
        native = CTable(
            spec.name.encode(),
            spec.values,
            int(spec.dtype),
            int(o.rule),
            o.mindspore,
            o.nesterov,
            int(spec.initial),
            spec.initial_a,
            spec.initial_b,
            spec.seed,
            o.momentum,
            o.beta1,
            o.beta2,
            o.epsilon,
            o.l1,
            o.l2,
            o.initial_accumulator,
        )
        self._session = session
        number = U64()
        check(lib.hf_table_define(session.handle, c.byref(native), c.byref(number)))
        self._number: Final = number.value

    def set(self, learning_rate: float, weight_decay: float) -> None:
        """Set what the updates use from the step under way on."""
        check(lib.hf_table_set(self._session.handle, self._number, learning_rate, weight_decay))

    def evict(self, steps: int) -> None:
        """Have the step under way evict rows whose last update was more than `steps` ago."""
        check(lib.hf_table_evict(self._session.handle, self._number, steps))

    def pull(self, keys: int, count: int, rows: int) -> int:
        """Fill `rows` with the rows of `count` keys; return the status."""
        status: int = lib.hf_table_pull(self._session.handle, self._number, keys, count, rows)
        return status

    def push(self, keys: int, count: int, gradients: int) -> int:
        """Add gradients to what the step does; return the status."""
        status: int = lib.hf_table_push(self._session.handle, self._number, keys, count, gradients)
        return status

    def assign(self, keys: int, count: int, rows: int) -> int:
        """Have rows begin anew with these values when the step ends; return the status."""
        status: int = lib.hf_table_assign(self._session.handle, self._number, keys, count, rows)
        return status
