"""Parameters that the job's parameter servers keep and update.

An optimizer's served parameters are one table, or one for each of its learning rates: the rows are
pieces of these parameters, one after the other, and each step touches all of them. The parameters
of a worker are copies, which are renewed after each step.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from holdfast import _core, _tables
from holdfast._abi import Status, check
from holdfast._errors import LeftError, MarkedError, UserError
from holdfast._say import say
from holdfast._seat import Phase
from holdfast._versions import told
from holdfast.mindspore._image import memory

MOST_VALUES: Final = 4096  # Of a row.
_FRESH: Final = struct.Struct("?")

Array = Any  # numpy.ndarray


class Process(Protocol):
    """What is asked of the Engine."""

    @property
    def session(self) -> _core.Session | None:
        """The session, once it is open."""

    @property
    def phase(self) -> Phase:
        """Who answers collectives."""

    @property
    def rehearsing(self) -> bool:
        """Whether this spare runs the program before it has its place."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def world_size(self) -> int:
        """The number of workers."""


class Part:
    """Parameters that one table holds, since one optimizer updates them by one learning rate."""

    def __init__(
        self,
        parameters: Sequence[Any],
        optimizer: _tables.Optimizer,
        rate: int,
        lazy: bool = False,
    ) -> None:
        """`rate`: the place of their learning rate among those that the optimizer gives.

        `lazy`: this is one table of embeddings, of which a step updates only the rows that have a
        gradient.
        """
        self.parameters = list(parameters)
        self._lazy = lazy
        self.rate = rate
        ends = np.cumsum([parameter.size for parameter in self.parameters])
        self._ranges = list(zip([0, *map(int, ends[:-1])], map(int, ends)))
        values = int(self.parameters[0].shape[-1]) if lazy else min(int(ends[-1]), MOST_VALUES)
        self.rows = -(-int(ends[-1]) // values)
        self._flat = np.zeros(self.rows * values, np.float32)  # The rest of the last row is 0.
        self._keys = np.arange(self.rows, dtype=np.uint64)
        self._described = values, optimizer
        self._table: _tables.Table | None = None
        self.learning_rate: float | None = None  # None: nothing was given in this step.

    def open(self, session: _core.Session, name: str) -> None:
        """Define the table."""
        values, optimizer = self._described
        self._table = _tables.Table(session, _tables.Spec(name, values, optimizer))

    def fill(self, arrays: Sequence[Array], share: int = 1) -> None:
        """Take arrays of the parameters' shapes, each divided by `share`."""
        for (begin, end), array in zip(self._ranges, arrays):
            np.divide(array.reshape(-1), np.float32(share), out=self._flat[begin:end])

    def give_to(self, arrays: Sequence[Array]) -> None:
        """Write what was pulled into arrays of the parameters' shapes."""
        for (begin, end), array in zip(self._ranges, arrays):
            array.reshape(-1)[:] = self._flat[begin:end]

    def pull(self) -> int:
        """Pull all rows; return the status."""
        assert self._table is not None
        return self._table.pull(self._keys.ctypes.data, self.rows, self._flat.ctypes.data)

    def push(self) -> int:
        """Push what fill() took, as gradients; return the status."""
        assert self._table is not None and self.learning_rate is not None
        self._table.set(self.learning_rate, 0.0)
        keys, gradients = self._keys, self._flat
        if self._lazy:
            by_row = gradients.reshape(self.rows, -1)
            keys = keys[by_row.any(axis=1)]
            gradients = by_row[keys]
        return self._table.push(keys.ctypes.data, len(keys), gradients.ctypes.data)

    def not_finite(self) -> str:
        """Return the name of the first parameter for which fill() took no finite number; or ""."""
        for parameter, (begin, end) in zip(self.parameters, self._ranges):
            if not np.isfinite(self._flat[begin:end]).all():
                return str(parameter.name)
        return ""

    def assign(self, gives: bool) -> int:
        """Have the rows begin with what fill() took, if this worker is the one that gives it."""
        assert self._table is not None
        count = self.rows if gives else 0
        return self._table.assign(self._keys.ctypes.data, count, self._flat.ctypes.data)


class Served:
    """All served parameters of this process. The Engine holds it."""

    def __init__(self, engine: Process) -> None:
        """Begin without any."""
        self._engine = engine
        self.enabled = False  # By set_ps_context(enable_ps=True).
        self.parts: list[Part] = []
        self.ids: dict[int, Any] = {}  # Parameters that set_param_ps() has named.
        self.lookups: dict[int, Any] = {}  # By the id of their table: each nn.EmbeddingLookup.
        self.compiled = False  # A graph was compiled that updates served parameters.
        self.others = False  # There is an optimizer with parameters that are not served.
        self._fresh = True  # This process has not agreed with the others on first values.
        self._greeted = 0  # A generation, in a loop that nothing protects.
        self._wrong = ""  # Why the step under way can not be.

    @property
    def all(self) -> bool:
        """Whether all optimizers have served parameters alone, so that nothing else is summed."""
        return bool(self.parts) and not self.others

    def add(self, part: Part) -> None:
        """Add a table. UserError: the tables are open already."""
        if self._engine.session is not None:
            raise UserError(
                "an optimizer of parameters with set_param_ps() comes too late: make all of them "
                "before the training"
            )
        self.parts.append(part)

    def open(self, session: _core.Session) -> None:
        """Define all tables in the session that is opened."""
        for i, part in enumerate(self.parts):
            part.open(session, f"parameters{i + 1}")

    # ---- What a graph's update comes to ----------------------------------------------------------

    def update(
        self,
        parts: Sequence[Part],
        places: Sequence[Sequence[int]],
        given: Sequence[Any],
        count: int,
    ) -> Sequence[Array]:
        """Take what an optimizer gives, and return the parameters' values after it.

        `given`: learning rates; gradients of `count` parameters; these parameters. `places`: those
        of each part among them. In a protected step the values stay: they are renewed at its end.
        """
        rates, values = given[: -2 * count], given[-count:]
        gradients = given[-2 * count : -count]
        phase = self._engine.phase
        if phase not in (Phase.LIVE, Phase.PLAIN) or self._engine.rehearsing:
            return values
        if any(part.learning_rate is not None for part in parts):
            self._wrong = (
                "an optimizer of parameters with set_param_ps() was called twice in one step; the "
                "servers update once in a step"
            )
        for part, at in zip(parts, places):
            part.fill([gradients[i] for i in at], self._engine.world_size)
            part.learning_rate = float(np.asarray(rates[part.rate]).reshape(-1)[0])
        if phase is Phase.LIVE:
            return values
        try:
            self._step(parts)
            new = [np.empty_like(value) for value in values]
            for part, at in zip(parts, places):
                part.give_to([new[i] for i in at])
            return new
        except BaseException as error:  # It would be MindSpore's, with the step half made.
            say(str(error))
            os._exit(1)

    # ---- In a protected step ---------------------------------------------------------------------

    def forget(self) -> None:
        """Forget what was given in a step that is given up."""
        self._wrong = ""
        for part in self.parts:
            part.learning_rate = None

    def push(self) -> None:
        """Push what the step has given. MarkedError: a fault came."""
        if self._wrong:
            raise UserError(self._wrong)
        for part in self.parts:
            if part.learning_rate is None:
                continue
            status = part.push()
            if status == Status.USER and (name := part.not_finite()):
                raise UserError(
                    f"rank {self._engine.rank} has a gradient of parameter '{name}' that is no "
                    "finite number; state.check(loss), or CheckLoss, has such a step made again "
                    "or left out"
                )
            check(status)
        self.forget()

    def pull(self) -> None:
        """Renew all parameters. MarkedError: a fault came, and nothing has changed."""
        for part in self.parts:
            check(part.pull())
        for part in self.parts:
            part.give_to([memory(parameter) for parameter in part.parameters])

    def assign(self) -> None:
        """Have all rows begin with rank 0's parameters. MarkedError: a fault came."""
        for part in self.parts:
            part.fill([memory(parameter) for parameter in part.parameters])
            check(part.assign(self._engine.rank == 0))

    # ---- In a loop that nothing protects ---------------------------------------------------------

    def begin(self) -> None:
        """Agree on the first values, in a session that has begun its first step."""
        while not self._meet() or not self._ends(self.assign):
            self._session.begin_step()
        self._fresh = False
        self._pull(self.parts)
        for part in self.parts:
            part.give_to([memory(parameter) for parameter in part.parameters])

    @property
    def _session(self) -> _core.Session:
        session = self._engine.session
        assert session is not None
        return session

    def _step(self, parts: Sequence[Part]) -> None:
        """Push, end the step, and pull. A fault that no worker has died of costs nothing."""
        rates = [part.learning_rate for part in parts]
        while not self._meet() or not self._ends(self.push):
            for part, rate in zip(parts, rates):
                part.learning_rate = rate
            self._session.begin_step()
        self._pull(parts)

    def _ends(self, act: Callable[[], None]) -> bool:
        """Act, and end the step. False: it is void."""
        try:
            act()
            return not self._session.end_step(_core.Step())
        except LeftError:
            raise
        except MarkedError:
            return False

    def _pull(self, parts: Sequence[Part]) -> None:
        """Begin the next step, and pull."""
        while True:
            self._session.begin_step()
            try:
                if self._meet():
                    for part in parts:
                        check(part.pull())
                    return
            except LeftError:
                raise
            except MarkedError:
                continue

    def _meet(self) -> bool:
        """See in a new generation that all workers are at the same step. False: a fault came.

        Nothing is kept of such a loop at the workers. If one of them was lost, all begin anew.
        """
        session = self._session
        if session.generation == self._greeted:
            return True
        fresh = told(session, _FRESH, self._fresh)
        if fresh is None:
            return False
        if all(one == (self._fresh,) for one in fresh):
            self._greeted = session.generation
            return True
        if not self._fresh:
            raise MarkedError(
                "another worker was lost, and nothing but the servers' parameters is kept of this "
                "loop: this process ends, so that all workers start again from the top"
            )
        return False
