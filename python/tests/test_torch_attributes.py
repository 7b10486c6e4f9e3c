"""What a trainer's objects hold is kept by attribute: holdfast.torch._attributes."""

from __future__ import annotations

import io
import pickle
from types import SimpleNamespace
from typing import Any

from torch_job import needs_torch

pytestmark = needs_torch


def kept(thing: Any) -> Any:
    from holdfast.torch._attributes import Attributes

    return Attributes(lambda: thing)


def saved(keeper: Any) -> Any:
    return pickle.loads(pickle.dumps(keeper.state_dict()))


def test_torch_two_attributes_that_become_one_tensor_are_two_again() -> None:
    import torch

    thing = SimpleNamespace(best=torch.tensor(1.0), last=torch.tensor(2.0), scores={})
    keeper = kept(thing)
    before = saved(keeper)
    thing.best = thing.last
    thing.scores["x"] = thing.last
    keeper.load_state_dict(before)
    assert (thing.best.item(), thing.last.item(), thing.scores) == (1.0, 2.0, {})


def test_torch_a_list_that_the_program_holds_stays_the_same_list() -> None:
    history = [1, 2]
    thing = SimpleNamespace(history=history)
    keeper = kept(thing)
    before = saved(keeper)
    history.append(3)
    keeper.load_state_dict(before)
    assert thing.history is history
    assert history == [1, 2]


def test_torch_two_attributes_that_become_one_list_are_two_again() -> None:
    thing = SimpleNamespace(best=[1], last=[2])
    keeper = kept(thing)
    before = saved(keeper)
    thing.best = thing.last
    keeper.load_state_dict(before)
    assert (thing.best, thing.last) == ([1], [2])


def test_torch_an_attribute_that_a_void_step_has_made_is_removed() -> None:
    thing = SimpleNamespace(a=1)
    keeper = kept(thing)
    before = saved(keeper)
    thing.b, thing.save = 2, lambda: None  # hold() puts methods in place of a trainer's own.
    keeper.load_state_dict(before)
    assert vars(thing).keys() == {"a", "save"}


def test_torch_what_is_not_plain_is_left_and_named() -> None:
    file = io.StringIO()
    thing = SimpleNamespace(file=file, data=list(range(100_000)), n=1)
    keeper = kept(thing)
    before = saved(keeper)
    thing.n = 2
    keeper.load_state_dict(before)
    assert (thing.file, thing.n, len(thing.data)) == (file, 1, 100_000)
    large, foreign = keeper.lost()
    assert "SimpleNamespace.data" in large
    assert "SimpleNamespace.file" in foreign
