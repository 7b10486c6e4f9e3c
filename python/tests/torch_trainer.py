"""Run an example, kill this process at places of its steps, and write what State holds at the end.

Arguments: the example, a folder, and the kills: JSON of [[rank, step, place], ...], each done once.
Places: forward, backward, sum, update, evaluation, between; for trainers with loops of their own
also save, after a file was written. There, evaluation is a forward pass of a model that does not
train, and between the beginning of a pass.
"""

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

import holdfast.torch as hf
import holdfast.torch._state
from holdfast._digest import digest
from holdfast.torch._sampled import everything_in

script, folder, kills = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
states: list[hf.State] = []
is_driven = "import hold\n" in Path(script).read_text()


def come_to(place: str, *_: Any) -> None:
    """Kill this process if a kill is due at a place and was not made yet."""
    if not states:
        return
    state = states[0]
    for rank, step, where in kills:
        mark = folder / f"killed-{rank}-{step}-{where}"
        is_here = where == place and dist.get_rank() == rank and state.n >= step
        if is_here and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(hf.State):
    """A State that is noted in `states`, and whose once() has a place."""

    def __init__(self, *things: Any, **named: Any) -> None:
        super().__init__(*things, **named)
        states.append(self)

    def once(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a result, with a place before its end."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            come_to("evaluation")
            return result

        come_to("between")
        return super().once(watched, *args, **kwargs)

    def steps(self, *args: Any, **kwargs: Any) -> Any:
        """Begin a pass. For a trainer that calls no once(), this is a place."""
        if is_driven:
            come_to("between")
        return super().steps(*args, **kwargs)


def end() -> None:
    """Write what State holds, by name, then do the usual."""
    state = states[0]
    kept = state.kept
    found = {}
    for name, thing in everything_in(kept, kept.walk(False), kept.objects()):
        found[name] = digest(thing)
        if isinstance(thing, dict) and isinstance(thing.get("values"), dict):  # Of a trainer.
            found.update((f"{name}.{key}", digest(v)) for key, v in thing["values"].items())
    result = {"n": state.n, "kept": found}
    (folder / f"result-{dist.get_rank()}").write_text(json.dumps(result))
    destroy()


def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Replace torch.Tensor.backward: with a place at its first gradient, and one after it."""
    tensor.register_hook(lambda _: come_to("backward"))
    plain_backward(tensor, *args, **kwargs)
    come_to("sum")


def forward(module: torch.nn.Module, _: Any) -> None:
    """Come to a place in a forward pass."""
    if isinstance(module, torch.nn.Dropout):
        come_to("forward" if module.training or not is_driven else "evaluation")


def save(*args: Any, **kwargs: Any) -> None:
    """Replace torch.save: with a place after it."""
    plain_save(*args, **kwargs)
    come_to("save")


plain_save, torch.save = torch.save, save
hf.State = holdfast.torch._state.State = Watched  # type: ignore[misc]
destroy, dist.destroy_process_group = dist.destroy_process_group, end
plain_backward, torch.Tensor.backward = torch.Tensor.backward, backward
register_module_forward_pre_hook(forward)
register_optimizer_step_post_hook(lambda *_: come_to("update"))
sys.argv = [script]
runpy.run_path(script, run_name="__main__")
