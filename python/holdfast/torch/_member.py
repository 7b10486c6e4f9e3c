"""A process group in torch's eyes: ranks, names, and who answers collectives at the moment."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast import _exchange
from holdfast._errors import MarkedError, PeerError, UserError
from holdfast._seat import Phase
from holdfast.torch._callers import is_of_a_framework, wanted_objects
from holdfast.torch._eager import runs_as_it_is
from holdfast.torch._early import OTHERS, Early
from holdfast.torch._engine import Engine
from holdfast.torch._work import Done, Runner, gives_lasting_works

_Base: Any = dist.ProcessGroup  # Its stubs describe overloads that torch itself never calls.


@runs_as_it_is
@gives_lasting_works
class Member(_Base):  # type: ignore[misc]
    """A process group as torch knows it, which also knows who answers its collectives now."""

    def __init__(self, engine: Engine, rank: int, size: int, name: str, ranks: list[int]) -> None:
        """`ranks`: the members' ranks in the job, in the group's order."""
        super().__init__(rank, size)
        self._engine = engine
        self._own_rank = rank
        self._size = size
        self.label = label_of(name)
        self._name = name
        self._purpose = "undefined"
        self._ranks = ranks
        self._handle = 0
        self._opened: list[_exchange.Group] = []
        self.runner = Runner()
        self.is_down = False
        self._used_map = 0  # Elements of an all-reduce to be answered locally; 0: none.
        engine.groups.add(self)
        weakref.finalize(self, self.runner.stop).atexit = False

    # ---- Who answers ----------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget who answers collectives. The next one finds out anew."""
        self._handle = 0

    def answer_used_map(self, elements: int) -> None:
        """Answer the next int32 all-reduce of so many elements locally: DDP's map of used ones."""
        self._used_map = elements

    def _group(self, answers: bool = True) -> int:
        """Return the hf_group*; 0: give an echo. `answers`: a program may depend on the result."""
        engine = self._engine
        if answers and not engine.echoing:
            engine.note_between()
        self.runner.drain()  # Keeps operations in the order of their calls.
        if engine.echoing or engine.marked:
            return 0
        if self._handle:
            return self._handle
        if engine.too_late:  # A barrier may pass: the rank that has ended had passed its own.
            if answers:
                engine.see_that_others_are_there()
            return 0
        if engine.phase is Phase.ECHO:
            if wanted_objects():
                engine.meet()  # Lets ranks that have their answers know, so that all start again.
                raise UserError(_NO_OBJECTS)
            return 0
        if engine.phase is Phase.EARLY:
            if not engine.first_start:
                if wanted_objects():
                    raise UserError(OTHERS)
                return 0  # Only a framework comes here. State restores what it asks for.
            opened = engine.seat.worker.early_group(self._ranks, f"early-{self.label}")
        else:
            if engine.session is None:
                raise UserError("the training of this rank has ended; nothing can be exchanged now")
            if len(self._ranks) == engine.seat.world_size and self.label == "world":
                self._handle = engine.session.world.handle
                return self._handle
            opened = engine.session.group(self._ranks, self.label)
        self._opened.append(opened)  # Never closed: other ranks may still be using it.
        self._handle = opened.handle
        return self._handle

    def _early(self) -> Early | None:
        """Return what answers the program's own calls before its State; None: _group() does.

        Frameworks get their answers from _group(): they exchange much, and State restores it.
        """
        engine = self._engine
        if engine.phase is not Phase.EARLY or engine.echoing or self._size == 1:
            return None
        self.runner.drain()
        return None if is_of_a_framework() else engine.early

    def _nobody_gives(self) -> NoReturn:
        """Raise an error: the others did not make this exchange before their States."""
        if self._engine.first_start:
            raise PeerError(
                "a rank has made its State without what this one wants to exchange before its own; "
                "all ranks run one program and exchange the same in the same order"
            )
        raise UserError(OTHERS)

    def _nothing_came(self, tensor: Tensor) -> None:
        """In a void step, fill with zeros a tensor that another rank would have sent.

        A framework's tensor stays as it is, since it holds valid values. MarkedError: the program
        would unpickle the tensor.
        """
        if call := wanted_objects():
            raise MarkedError(
                f"{call} was not completed, since another process was lost, and nothing can stand "
                "for another rank's objects; this process ends too, and is replaced"
            )
        if not is_of_a_framework():
            tensor.zero_()

    def rank(self) -> int:
        """Return this process's rank in the group; a spare waits for it."""
        if len(self._ranks) == self._engine.seat.world_size and not self._engine.creating:
            self._own_rank = self._ranks.index(self._engine.seat.rank)
        return self._own_rank

    def getRank(self) -> int:  # noqa: N802
        """Return the rank for DDP's log. A spare does not wait for it."""
        return self.rank() if self._engine.seat.place_known else self._own_rank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks."""
        return self._size

    size = getSize

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name under which the backend was registered."""
        return "holdfast"

    name = getBackendName

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def group_name(self) -> str:
        """The name in torch's registry, by which functional collectives find the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """The purpose of the group, as torch describes it."""
        return self._purpose

    def _set_group_desc(self, purpose: str) -> None:
        self._purpose = purpose

    def shutdown(self) -> None:
        """Shut the group down, once. The end of the world group ends the training."""
        if self.is_down:
            return
        self.runner.drain()
        if self.label == "world":
            self._engine.end()
        self.runner.stop()
        self.is_down = True

    def abort(self) -> None:
        """Do nothing: the runtime ends what has to be ended."""

    def set_timeout(self, timeout: Any) -> None:
        """Do nothing: there are no timeouts here, faults are detected."""

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> Done:
        self.runner.drain()  # torch waits for the work returned here, not for the sums'.
        return Done([])


def label_of(name: str) -> str:
    """Return the name of a group with only those characters that the C interface allows."""
    if name in ("0", "default_pg", ""):
        return "world"
    clean = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    if len(clean) <= 50:
        return clean
    return clean[:20] + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


_NO_OBJECTS: Final = (
    "this process replaces another and asks for another rank's objects (broadcast_object_list, "
    "scatter_object_list) where the others do not; exchange them before hf.State(...), or by "
    "state.once(f)"
)
