"""OnRequestExit and MS_ENABLE_GRACEFUL_EXIT: all ranks leave a training after the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import ops

from holdfast.mindspore._imported import imported

if TYPE_CHECKING:
    from holdfast.mindspore._engine import Engine


# MindSpore's graph compiler reads the source of this function.
def agree(self, grad, init_value, exit_value):  # type: ignore[no-untyped-def]
    """Replace ExitByRequest.exit_by_request: write down whether all ranks were asked to leave."""
    if self.is_distributed:
        all_status = self.all_reduce(ops.depend(init_value, grad))
        wanted = self.reduce_all(self.equal(all_status, self.base))
        grad = ops.depend(grad, self.assign(exit_value, wanted))
    return grad


class _Numbered:
    """MindSpore's context, except that device_id is the rank."""

    def __init__(self, real: Any, engine: Engine) -> None:
        self._real, self._engine = real, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_context(self, name: str) -> Any:
        """Return an entry of the context."""
        return self._engine.rank if name == "device_id" else self._real.get_context(name)


def apply(engine: Engine) -> None:
    """Install all replacements."""
    # The usual function's all-reduce is not ordered after the gradients' (utils.py:74), so ranks
    # might make the two in different orders.
    imported("mindspore.utils.utils").ExitByRequest.exit_by_request = agree
    module = imported("mindspore.train.callback._on_request_exit")
    # The folder is rank_<device_id> (line 314): on the CPU all ranks write to rank_0, at once.
    module.context = _Numbered(module.context, engine)
    usual = module.save_checkpoint

    def save(net: Any, *given: Any, append_dict: Any = None, **named: Any) -> None:
        if engine.rehearses:
            return  # The rank writes it.
        # "global_step" as a number hides the optimizer's parameter of shape (1,), and neither a
        # successor nor a training that goes on can load it (serialization.py:287).
        mine = {parameter.name for parameter in net.get_parameters()}
        rest = {k: v for k, v in (append_dict or {}).items() if k not in mine}
        usual(net, *given, append_dict=rest or None, **named)

    module.save_checkpoint = save
