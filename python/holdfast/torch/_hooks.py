"""Keep what torch's own DDP communication hooks hold between steps, such as PowerSGD's errors.

A hook's state object can be pickled but has no state_dict(). It holds process groups, which differ
in every process and are left out.
"""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist

from holdfast._errors import UserError
from holdfast.torch._private import comm_hooks

_MODULES: Final = tuple(
    f"torch.distributed.algorithms.ddp_comm_hooks.{name}_hook"
    for name in ("powerSGD", "post_localSGD")
)


def is_hook_state(thing: Any) -> bool:
    """Return whether this is the state of a hook that changes it from step to step."""
    return type(thing).__module__ in _MODULES


class HookState:
    """The state of a hook, with the state_dict() that State asks for."""

    def __init__(self, state: Any) -> None:
        """Hold the hook's state object."""
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes but process groups."""
        values = {name: getattr(self.state, name) for name in type(self.state).__slots__}
        return {n: v for n, v in values.items() if not isinstance(v, dist.ProcessGroup)}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Put everything back."""
        for name, value in values.items():
            setattr(self.state, name, value)


def see_that_hooks_are_kept(ddps: list[Any], others: dict[str, Any]) -> int:
    """Refuse hook states that State was not given. Return the most bytes of those it was."""
    kept = [thing.state for thing in others.values() if isinstance(thing, HookState)]
    room = 0
    for ddp in ddps:
        for _, state in comm_hooks(ddp):
            if any(state is known for known in kept):
                room += 3 * sum(p.nbytes for p in ddp.parameters() if p.requires_grad)
            elif is_hook_state(state):
                raise UserError(
                    f"the communication hook of DistributedDataParallel goes by a "
                    f"{type(state).__name__} that State was not given, and that a fault would "
                    "lose: State(..., hook=state)"
                )
    return room
