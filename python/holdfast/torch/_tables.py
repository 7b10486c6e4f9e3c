"""Embedding: rows of a table that the job's parameter servers keep, as a module."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import _tables
from holdfast._abi import DType
from holdfast._errors import UserError
from holdfast._seat import Phase
from holdfast.torch import _engine
from holdfast.torch._eager import runs_between_graphs

MOST_VALUES: Final = 4096  # Of a row.
_DTYPES: Final = {torch.float32: DType.FLOAT32, torch.bfloat16: DType.BFLOAT16}


@dataclass
class Rates:
    """What of an update may change from step to step."""

    lr: float
    weight_decay: float

    def state_dict(self) -> dict[str, float]:
        """Return what State keeps."""
        return {"lr": self.lr, "weight_decay": self.weight_decay}

    def load_state_dict(self, kept: dict[str, float]) -> None:
        """Take what State has kept."""
        self.lr, self.weight_decay = kept["lr"], kept["weight_decay"]


class Embedding(torch.nn.Module):
    """A table of embeddings that the job's parameter servers keep and update. Not thread-safe.

    Use it as torch.nn.Embedding, in a model of a program with hf.State. It has no parameters in
    torch's sense: no optimizer, no state_dict and no DistributedDataParallel knows its rows.
    docs/parameter-server.md says what is promised.
    """

    def __init__(
        self,
        rows: int | None,
        dim: int,
        *,
        optimizer: str = "adagrad",
        lr: float = 0.01,
        weight_decay: float = 0.0,
        initial: tuple[str, float, float] = ("normal", 0.0, 1.0),
        seed: int = 0,
        name: str | None = None,
        dtype: torch.dtype = torch.float32,
        **options: float,
    ) -> None:
        """Describe a table of `rows` rows (None: any id from 0 to 2^63 - 1) of `dim` values.

        Make it after hf.init() and before hf.State(...), the same on all ranks. `optimizer`: sgd,
        momentum, adagrad, row_adagrad, adam, sparse_adam, adamw or ftrl; `options` are its numbers,
        named as in torch.optim. The update uses `lr` and `weight_decay` as they are when the step
        ends; all ranks set the same. `initial`: how a row begins: ("normal", mean, deviation),
        ("uniform", low, high) or ("constant", value, 0).

        Errors: UserError if the job has no servers, or this makes no sense.
        """
        super().__init__()
        self.rows, self.dim = rows, dim
        self.rates = Rates(float(lr), float(weight_decay))
        engine = engine_before_state("hf.Embedding")
        if (rows is not None and rows < 1) or not 1 <= dim <= MOST_VALUES:
            raise UserError(
                f"hf.Embedding({rows}, {dim}): allowed are None or a number of rows from 1, and 1 "
                f"to {MOST_VALUES} values in a row"
            )
        if dtype not in _DTYPES:
            raise UserError(f"hf.Embedding keeps torch.float32 or torch.bfloat16, not {dtype}")
        kinds = {kind.name.lower(): kind for kind in _tables.Initial}
        if len(initial) != 3 or initial[0] not in kinds or not all(map(math.isfinite, initial[1:])):
            raise UserError(
                f"initial={initial!r}: allowed are ('normal', mean, deviation), ('uniform', low, "
                "high) and ('constant', value, 0)"
            )
        self._spec = _tables.Spec(
            name=name or f"embedding{len(engine.tables) + 1}",
            values=dim,
            optimizer=_tables.optimizer_named(optimizer, options),
            initial=kinds[initial[0]],
            initial_a=initial[1],
            initial_b=initial[2],
            seed=seed,
            dtype=_DTYPES[dtype],
        )
        self._table: _tables.Table | None = None
        self._pulled: list[tuple[Tensor, Tensor]] = []  # Keys and rows, in the step under way.
        self._evicts: int | None = None  # In the step under way: evict()'s steps.
        engine.tables.append(self)

    @property
    def lr(self) -> float:
        """The learning rate, kept by State. The update uses it as it is when the step ends."""
        return self.rates.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.rates.lr = float(value)

    @property
    def weight_decay(self) -> float:
        """The weight decay: as lr."""
        return self.rates.weight_decay

    @weight_decay.setter
    def weight_decay(self, value: float) -> None:
        self.rates.weight_decay = float(value)

    def evict(self, unused_for: int) -> None:
        """Evict, when the step ends, rows whose last update was more than `unused_for` steps ago.

        They begin anew when they are looked up again. Only steps with gradients for the table
        count. Call it in a step, the same on all ranks. Errors: UserError if there is no step, or
        `unused_for` is below 1.
        """
        if unused_for < 1:
            raise UserError(
                f"{self._spec.name} is to evict rows unused for {unused_for} steps: at least 1 is "
                "expected"
            )
        engine = _engine.engine
        if engine is None or not engine.in_step:
            raise UserError(f"{self._spec.name}.evict() has to be called in a step")
        self._evicts = unused_for

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refuse, since a table is one, whoever asks it."""
        raise UserError(
            f"{self._spec.name} is a table of the job's servers: it can not be copied, nor can a "
            "model that has it; pull the rows that you want to keep"
        )

    def __getstate__(self) -> NoReturn:
        """Refuse, as __deepcopy__ does."""
        self.__deepcopy__(None)

    @property
    def label(self) -> str:
        """The table's name."""
        return self._spec.name

    def extra_repr(self) -> str:
        """Show the table as torch shows a module."""
        many = "any id" if self.rows is None else str(self.rows)
        return f"{many}, {self.dim}, {self._spec.optimizer.rule.name.lower()}, lr={self.lr}"

    @runs_between_graphs
    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids`, whole numbers in any shape: that shape, and `dim` behind it.

        All ranks come here alike; the ids may differ. Where gradients are wanted, those of the step
        go to the servers when it ends, divided by the number of ranks as by
        DistributedDataParallel.
        """
        keys, places = torch.unique(self._checked(ids), return_inverse=True)
        rows = torch.zeros(keys.numel(), self.dim)
        self._pull(keys, rows)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._pulled.append((keys, rows))
        return functional.embedding(places, rows).view(*ids.shape, self.dim)

    def _checked(self, ids: Tensor) -> Tensor:
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise UserError(f"{self._spec.name} was asked for ids of {ids.dtype}: whole numbers")
        if ids.device.type != "cpu":
            raise UserError(f"{self._spec.name} was asked for ids on {ids.device}: the CPU's")
        flat = ids.reshape(-1).to(torch.int64)
        if flat.numel():
            low, high = int(flat.min()), int(flat.max())
            if low < 0 or (self.rows is not None and high >= self.rows):
                wrong = low if low < 0 else high
                allowed = "from 0 on" if self.rows is None else f"0 to {self.rows - 1}"
                raise UserError(f"{self._spec.name} was asked for id {wrong}; allowed is {allowed}")
        return flat

    def _pull(self, keys: Tensor, rows: Tensor) -> None:
        engine = _with_servers(f"{self._spec.name} was used", "its rows can be had")
        if engine is None or self._table is None:
            return
        if status := self._table.pull(keys.data_ptr(), keys.numel(), rows.data_ptr()):
            rows.zero_()
            engine.cut_short(status)

    # ---- For the engine -------------------------------------------------------------------------

    def open(self, session: Any) -> None:
        """Define the table in the session that State has opened."""
        self._table = _tables.Table(session, self._spec)

    def forget(self) -> None:
        """Forget the gradients of a step that is given up, or was not meant to have any."""
        self._pulled.clear()
        self._evicts = None

    def push(self) -> int:
        """Push the gradients of the step; return the first status that is not good."""
        engine, table = _engine.engine, self._table
        assert engine is not None and table is not None
        table.set(self.lr, self.weight_decay)
        if self._evicts is not None:
            table.evict(self._evicts)
            self._evicts = None
        pulled, self._pulled = self._pulled, []
        if not pulled:  # So it is on all ranks.
            return 0
        given = [(keys, rows.grad) for keys, rows in pulled if rows.grad is not None]
        keys = torch.cat([torch.empty(0, dtype=torch.int64), *(keys for keys, _ in given)])
        grads = torch.cat([torch.empty(0, self.dim), *(grad for _, grad in given)])
        grads = (grads / engine.seat.world_size).contiguous()
        return table.push(keys.data_ptr(), keys.numel(), grads.data_ptr())


def engine_before_state(what: str) -> _engine.Engine:
    """Return the engine, for what describes tables. UserError: there is no room for `what`."""
    engine = _engine.engine
    if engine is None or engine.session is not None:
        raise UserError(
            f"{what} has to be made after hf.init() and before hf.State(...), which opens the "
            "tables"
        )
    if engine.seat.servers == 0:
        raise UserError(
            f"{what} needs parameter servers, and this job has none: start it with "
            "`holdfast run --servers 1 ...`"
        )
    return engine


def load_tables(folder: str | os.PathLike[str]) -> None:
    """Have the tables begin with the rows that save_tables() has left in `folder`.

    Call it after hf.init() and before hf.State(...), the same on all ranks. Any number of servers
    can load what any other number has saved. All servers' hosts have to see the folder.

    Errors: UserError if a State is there. A folder that can not be used, or has other tables, ends
    the job by name at the State's first step.
    """
    engine = _engine.engine
    if engine is None or engine.session is not None:
        raise UserError("hf.load_tables comes after hf.init() and before hf.State(...)")
    engine.tables_from = os.path.abspath(folder)


def save_tables(folder: str | os.PathLike[str]) -> None:
    """Save the rows of all tables, and their optimizers' state, as they were after the last step.

    The servers write to `folder`, which all their hosts have to see: a safetensors file for each
    table and server, then tables.json. An older save there stays whole until this one is. All ranks
    come here alike, as to a lookup: in a step, in state.once(hf.save_tables, folder), or after the
    last step.

    Errors: WorldError if a file can not be written (names it).
    """
    engine = _with_servers("hf.save_tables was called", "it comes")
    if engine is not None and (status := _tables.save_tables(engine.session, os.fspath(folder))):
        engine.cut_short(status)


def _with_servers(what: str, then: str) -> Any:
    """Return the engine for an exchange with the servers; None: in this phase there is none."""
    engine = _engine.engine
    if engine is not None and (engine.echoing or engine.marked):
        return None
    if engine is None or engine.phase is Phase.EARLY or engine.session is None:
        raise UserError(f"{what} before hf.State(...): {then} after that")
    engine.note_between()
    engine.drain()
    engine.see_that_others_are_there()
    return None if engine.phase is Phase.ECHO else engine
