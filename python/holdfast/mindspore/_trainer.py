"""What a program's calls of Model.train have in common: one network, its state, a data seed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast._errors import UserError
from holdfast._losses import Losses
from holdfast.mindspore import _bulk, _callbacks, _last
from holdfast.mindspore._between import Rest
from holdfast.mindspore._cells import Cells, hidden_parameters
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._passed import Evaluated, Former
from holdfast.mindspore._random import DataSeed
from holdfast.mindspore._steps import Steps
from mindio_ttp import _switches


def draws(network: Any) -> bool:
    """Return whether a network has dropout."""
    cells = (cell for _, cell in network.cells_and_names())
    return any(type(c).__name__.startswith("Dropout") and getattr(c, "p", 1) for c in cells)


def warn_of_dropout(engine: Engine, network: Any) -> None:
    """Say in a successor what it can not get from its predecessor."""
    if engine.rehearses and draws(network):
        engine.worker.rehearsal_skips(
            "the network has dropout, whose masks begin anew in a replacement (docs/mindspore.md)"
        )
    if engine.restarted and draws(network):
        engine.say_once(
            "the network has dropout, whose masks begin anew in this process, which takes "
            "another's place: training goes on, but not with the bits of one without a fault"
        )


class Trainer:
    """All calls of Model.train of a program, which all train one network."""

    def __init__(self, engine: Engine) -> None:
        """Begin without an open state."""
        self.engine = engine
        self.state: Steps | None = None
        self.call = 0  # Calls of Model.train that were begun, from 1.
        self.training = False  # Model.train is under way.
        self.retrying = False  # After a repair, the same call is entered again.
        self.evaluated = Evaluated()
        self.losses = Losses()
        # A call; and the states of random generators and of the pipeline's parts when it began.
        self.drawn = 0, b"", b""
        self.seed = DataSeed()  # It gives each call a seed of its own.
        switches = _switches.read(os.environ.get(_switches.VARIABLE, "")).on
        self.repairs = not {"UCE", "HCCE", "ARF"}.isdisjoint(switches)
        self._rest: Rest | None = None
        self._network: Any = None
        self.cells: Cells | None = None  # The cells of the network.
        self._others: list[Any] = []  # Parameters that callbacks hold, or objects within cells.
        self.former = Former()

    def passes(self) -> bool:
        """Return whether the program is between calls, and a predecessor has come further."""
        if self.training or self.state is None:
            return False
        return self.call < int(self.state.objects["call"])

    def open(self, network: Any, callbacks: list[Any]) -> Steps:
        """Return the state of a network and of what callbacks hold. The first call opens it."""
        if self.state is None:
            parameters = list(network.get_parameters())
            hidden = hidden_parameters(network)
            known = [*parameters, *hidden]
            self._others = [*hidden, *_callbacks.parameters(callbacks, known)]
            self.state = Steps(self.engine, parameters, {"call": 0}, self._others)
            self.evaluated.load(self.state.objects.get("evaluated", b""))
            self.former.load(self.state.objects.get("former", b""))
            self._network, self.cells = network, Cells(network, self.engine.say_once)
            if self.engine.place.directory:
                folder = Path(self.engine.place.directory)
                _bulk.current = _bulk.Bulk(folder, self.engine.rank, [*known, *self._others])
            warn_of_dropout(self.engine, network)
            if self.engine.gasps:
                _last.warm_up(self.engine.place)
        elif network is not self._network:
            mine = {id(p) for p in self._network.get_parameters()}
            if {id(p) for p in network.get_parameters()} != mine:
                raise UserError(
                    "a job keeps the state of one network with one optimizer; train a second one "
                    "in a job of its own"
                )
        return self.state

    def evaluate(self, make: Callable[[], Any]) -> Any:
        """Return the result of Model.eval; between calls that are passed over, the kept one."""
        state, say_once = self.state, self.engine.say_once
        if self.training or state is None:
            return make()
        place = self.evaluated.next(self.call)
        if self.call >= state.objects["call"]:
            result = make()
            if why := self.evaluated.keep(place, result):
                say_once(
                    f"what Model.eval has returned {why}, so a process that replaces another "
                    "evaluates with later weights there, and may decide otherwise by it"
                )
            return result
        if place in self.evaluated.kept:
            return pickle.loads(self.evaluated.kept[place])
        say_once(
            f"Model.eval after call {self.call} of Model.train, which was done before, evaluates "
            "with later weights: what it has returned then was not kept"
        )
        return make()

    # ---- A repair in the process -----------------------------------------------------------------

    @property
    def rest(self) -> Rest | None:
        """The Rest after the last step; None if not all callbacks were called for that step."""
        rest, state = self._rest, self.state
        if rest is None or state is None or (rest.call, rest.version) != (self.call, state.n):
            return None
        return rest

    @rest.setter
    def rest(self, rest: Rest) -> None:
        self._rest = rest

    def can_retry(self) -> bool:
        """Return whether this process can go back to the last step."""
        state = self.state
        return state is not None and not state.under_way and bool(state.n or self.rest)

    def retry(self) -> bool:
        """Go back to the last step if possible. The caller enters the loop right after this."""
        if not self.can_retry():
            return False
        assert self.state is not None
        if self.rest is not None:
            self.rest.put_back(self.state)
        else:
            self.state.go_back({})
        self.retrying = True
        return True
