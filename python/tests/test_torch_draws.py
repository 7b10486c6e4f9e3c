"""Generators that a program's data reaches are refused, unless they are set each time."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
from torch.utils.data import DataLoader, Dataset, Sampler, Subset  # noqa: E402

from holdfast._errors import UserError  # noqa: E402
from holdfast.torch._data import feeder_of  # noqa: E402
from holdfast.torch._position import Position, Sources  # noqa: E402
from holdfast.torch._random import Seeds  # noqa: E402

SEEDS = Seeds(5, 6, 7)


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([float(i)]) + torch.rand(1)


def read(loader: Any, skip: int = 0) -> list[Any]:
    return [b.tolist() for b in feeder_of(loader, SEEDS).start(0, 0, skip, None)]


COMMON: Any = getattr(random.random, "__self__", None)  # Python's own.


LATE: Any = numpy.random.default_rng(1)


def _late(x: Any) -> Any:
    return x + LATE.random()


class Transform(torch.nn.Module):
    def __init__(self, own: Any) -> None:
        super().__init__()
        self.steps = {"late": [own]}


class Seldom(Dataset[Any]):
    """A data set that draws for a few items only, by a generator that it holds somewhere inside."""

    def __init__(self, own: Any, anew: bool = False) -> None:
        self.transform = own
        self.anew = anew
        self.shuffle()

    def shuffle(self) -> None:
        self.first = LATE.random()  # Before the first step only.

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        if self.anew:
            self.transform[0].seed(i)
        return torch.tensor(float(self.transform[0].random()) if i % 3 == 2 else 0.0)


class ByName(Seldom):
    def __getitem__(self, i: int) -> Any:
        return _late(i) if i % 3 == 2 else i


HOLDERS: dict[str, tuple[Any, str]] = {
    "Seldom.transform[0]": ([random.Random(1)], ""),
    "Seldom.transform.steps['late'][0]": (Transform(torch.Generator()), ""),
    "Seldom.transform.func.x": (functools.partial((lambda x: lambda: x)(random.Random(1)), 1), ""),
    "Seldom.transform": (random.Random(1).random, ""),
    "LATE`, which `_late": (_late, " names"),
}


def _refuses(loader: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        Sources(Position()).of(loader, SEEDS, None)


@pytest.mark.parametrize("where", HOLDERS)
def test_torch_a_data_set_that_may_draw_from_a_generator_of_its_own_is_refused(where: str) -> None:
    own, more = HOLDERS[where]
    _refuses(DataLoader(Seldom(own), 1), f"set Seldom holds .* own, `{re.escape(where)}`{more}")
    inside = where.replace("Seldom", "Subset.dataset")
    _refuses(DataLoader(Subset(Seldom(own), [0, 1]), 1), re.escape(inside))


def test_torch_the_code_of_a_data_set_and_collate_fn_are_looked_into() -> None:
    _refuses(DataLoader(ByName(None), 1), "own, `LATE`, which `_late` names, which goes on")
    collate = functools.partial(max, key=random.Random(1).random)
    loader: Any = DataLoader(Noisy(), 1, collate_fn=collate)
    _refuses(loader, r"collate_fn holds a generator of its own, `partial.keywords\['key'\]`")


def test_torch_a_worker_that_is_given_a_generator_is_refused() -> None:
    def give(_: int) -> None:
        torch.utils.data.get_worker_info().dataset.transform = [random.Random(1)]  # type: ignore

    loader: Any = DataLoader(Seldom(None), 1, num_workers=1, worker_init_fn=give)
    batches = Sources(Position()).of(loader, SEEDS, None).feeder.start(0, 0, 0, None)
    with pytest.raises(UserError, match=r"own, `Seldom.transform\[0\]`"):
        list(batches)


def test_torch_a_data_set_may_draw_from_what_is_set_for_each_item() -> None:
    for data in (Seldom([random.Random(1)], anew=True), Seldom([COMMON])):
        Sources(Position()).of(DataLoader(data, 1), SEEDS, None)
        assert read(DataLoader(data, 1))[2:] == read(DataLoader(data, 1), skip=2)
    own = random.Random(1)  # State restores this generator.
    Sources(Position(), {"own": own}).of(DataLoader(Seldom([own]), 1), SEEDS, None)


class OwnOrder(Sampler[int]):
    """A sampler that draws only from its second epoch on; `sets`: it sets its generator in each."""

    epoch = 0

    def __init__(self, generator: Any, sets: bool = False) -> None:
        self.own, self.sets = generator, sets

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.sets:
            self.own.seed(self.epoch)
        draw = self.own.random if self.epoch or self.sets else float
        yield from sorted(range(4), key=lambda i: float(draw()))


def test_torch_a_sampler_with_a_generator_of_its_own_is_refused() -> None:
    for right in (OwnOrder(random), OwnOrder(random.Random(1), sets=True)):
        Sources(Position()).of(DataLoader(Noisy(), 4, sampler=right), SEEDS, None)
    for own in (random.Random(1), numpy.random.default_rng(1)):
        match = "sampler OwnOrder holds a generator of its own, `OwnOrder.own`"
        _refuses(DataLoader(Noisy(), 4, sampler=OwnOrder(own)), match)
