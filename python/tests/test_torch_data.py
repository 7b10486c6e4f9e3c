"""Loaders give every batch once, with the same bits in every process that reads them."""

from __future__ import annotations

import copy
import datetime
import pathlib
import pickle
import random
import weakref
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
)

from holdfast._errors import UserError  # noqa: E402
from holdfast.torch._batch import Batch  # noqa: E402
from holdfast.torch._data import Fetched, Mark, feeder_of  # noqa: E402
from holdfast.torch._position import Position, Sources  # noqa: E402
from holdfast.torch._random import Seeds, note, seed_of  # noqa: E402

SEEDS = Seeds(5, 6, 7)


def seed_all(seed: int) -> None:
    SEEDS.derive(seed).set()


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([float(i)]) + torch.rand(1)


def read(loader: Any, epoch: int, skip: int = 0) -> list[Any]:
    return [b.tolist() for b in feeder_of(loader, SEEDS).start(epoch, epoch, skip, None)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_torch_batches_do_not_depend_on_workers_or_on_where_one_begins(
    shuffle: bool, persistent: bool
) -> None:
    whole = read(DataLoader(Noisy(), 4, shuffle=shuffle), epoch=1)
    assert len(whole) == 5
    loader = DataLoader(Noisy(), 4, shuffle=shuffle, num_workers=2, persistent_workers=persistent)
    assert read(loader, epoch=1) == whole
    assert read(loader, epoch=1, skip=3) == whole[3:]
    assert read(DataLoader(Noisy(), 4, shuffle=shuffle), epoch=1, skip=2) == whole[2:]


class Endless(Sampler[int]):
    """A sampler as in detection frameworks: it draws as it goes, and has no length."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield random.randrange(20)


@pytest.mark.parametrize(
    "order",
    [
        {"shuffle": True},
        {"sampler": RandomSampler(Noisy(), replacement=True, num_samples=10**10)},
        {"sampler": Endless()},
    ],
    ids=["shuffle", "so many that none sees the end", "without a length"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_the_order_does_not_depend_on_the_step_that_asks_for_it(
    order: dict[str, Any], workers: int
) -> None:
    def first(skip: int, step: int) -> list[Any]:
        loader: Any = DataLoader(Noisy(), 4, num_workers=workers, **order)
        batches = feeder_of(loader, SEEDS).start(1, 1, skip, None)
        found = []
        for at in range(skip, 5):
            seed_all(1000 * step + at)  # As steps() does before it fetches a batch.
            found.append(next(batches).tolist())
        return found

    whole = first(0, step=0)
    assert whole[0] != whole[1]
    assert first(2, step=1) == whole[2:]


class Underrated(Sampler[list[int]]):
    """A batch sampler with more batches than its length says, as if it grouped by length."""

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(6):
            yield [i, i + 1]

    def __len__(self) -> int:
        return 4


def test_torch_a_sampler_gives_all_that_it_has_whatever_length_it_says() -> None:
    def batches(skip: int) -> list[Any]:
        loader: Any = DataLoader(Noisy(), batch_sampler=Underrated())
        return [batch.tolist() for batch in feeder_of(loader, SEEDS).start(0, 0, skip, None)]

    assert len(batches(0)) == 6
    assert batches(2) == batches(0)[2:]


def test_torch_an_order_that_is_drawn_bit_by_bit_disturbs_no_other_generator() -> None:
    loader: Any = DataLoader(Noisy(), 4, sampler=Endless())
    batches = feeder_of(loader, SEEDS).start(1, 1, 0, None)
    next(batches)
    seed_all(9)
    drawn = random.random()
    seed_all(9)
    tickets = iter(feeder_of(loader, SEEDS)._tickets)  # type: ignore[attr-defined]
    for _ in range(3):
        next(tickets)
    assert random.random() == drawn


def test_torch_epochs_differ_and_the_loaders_own_generator_is_followed() -> None:
    def loader() -> Any:
        return DataLoader(Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(3))

    assert read(loader(), 0) != read(loader(), 1)
    feeder = feeder_of(loader(), SEEDS)
    first = [b.tolist() for b in feeder.start(0, 0, 0, None)]
    second = [b.tolist() for b in feeder.start(1, 1, 0, None)]
    assert read(loader(), 0) == first
    assert read(loader(), 1) == second  # A process that has not read epoch 0 gets the same.


def test_torch_one_generator_of_two_loaders_has_the_seed_that_the_program_gave_it() -> None:
    def loaders() -> list[Any]:
        g = torch.Generator().manual_seed(3)
        return [DataLoader(Noisy(), size, shuffle=True, generator=g) for size in (4, 5)]

    first, second = loaders()
    read(first, 0)
    assert read(second, 1) == read(loaders()[1], 1)  # As without reading the first.


def test_torch_a_generator_that_state_keeps_is_the_loaders_and_the_bodys() -> None:
    def begin(done: int, kept: Any) -> list[Any]:
        g = torch.Generator().manual_seed(3)
        loader: Any = DataLoader(Noisy(), 4, shuffle=True, generator=g)
        if kept is not None:  # As State does.
            seed, state = kept
            note(g, seed, 1)
            g.set_state(state)
        drawn: list[Any] = []
        for batch in feeder_of(loader, SEEDS).start(1, 1, done, None):
            if kept is not None and not drawn:  # As steps() does.
                g.set_state(state)
            drawn.append((batch.tolist(), float(torch.rand(1, generator=g))))
            states.append((seed_of(g), g.get_state()))
        return drawn

    states: list[Any] = []
    whole = begin(0, None)
    assert begin(2, states[1]) == whole[2:]


def test_torch_a_loaders_own_generator_is_the_same_in_the_midst_of_a_pass() -> None:
    def there(done: int) -> Any:
        g = torch.Generator().manual_seed(3)
        loader: Any = DataLoader(Noisy(), 4, shuffle=True, generator=g)
        next(feeder_of(loader, SEEDS).start(1, 1, done, None))
        return g.get_state()

    assert torch.equal(there(0), there(2))


def test_torch_a_loader_without_batches_of_its_own_is_followed_too() -> None:
    whole = read(DataLoader(Noisy(), batch_size=None), 0)
    assert len(whole) == 20
    assert read(DataLoader(Noisy(), batch_size=None), 0, skip=15) == whole[15:]


class Counting:
    """An iterable of a program's own that tells its position."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 6:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_torch_an_iterable_with_state_dict_goes_on_where_it_was() -> None:
    feeder = feeder_of(Counting(), SEEDS)
    batches = feeder.start(0, 0, 0, None)
    assert [next(batches), next(batches)] == [1, 2]
    state = feeder.state()
    assert list(feeder_of(Counting(), SEEDS).start(0, 0, 2, Mark(state))) == [3, 4, 5, 6]


class Flow:
    """A source with passes of three batches. Its state after a pass is where the next begins."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            yield self.at
            if self.at % 3 == 0:
                return

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


class Resumed(Flow):
    """A source that begins each pass anew, except the first after load_state_dict()."""

    first, passes = 0, 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.first = self.first, 0
        self.passes += 1
        while self.at < 3:
            self.at += 1
            yield 10 * self.passes + self.at

    def state_dict(self) -> tuple[int, int]:  # type: ignore[override]
        return self.passes, self.at

    def load_state_dict(self, state: tuple[int, int]) -> None:  # type: ignore[override]
        self.passes, self.first = state[0] - 1, state[1]


class Itself(Flow):
    """A source that is its own iterator."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == 3:
            self.at = 0
            raise StopIteration
        self.at += 1
        return self.at


def in_turns(
    at: Position, choose: Callable[[int], tuple[Any, str]], passes: range
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Make passes over sources, each with its name; yield each step's batch and its image."""
    sources = Sources(at)
    begun = at.epoch if at.index else -1
    for epoch in passes:
        data, name = choose(epoch)
        source = sources.of(data, SEEDS, name)
        if epoch < begun:
            source.pass_over(0)
            continue
        if epoch == begun:
            source.arrive()
        if at.begin(epoch, 0):
            source.pass_over(0)
            continue
        for batch in source.batches(lambda before: None):
            at.index += 1
            at.see_ahead()
            yield batch, at.objects()


def resumed(image: Any) -> Position:
    position = Position()
    position.restore(pickle.loads(pickle.dumps(image)))
    return position


@pytest.mark.parametrize("kind", [Flow, Resumed, Itself, Counting])
def test_torch_a_replacement_goes_on_with_the_pass_that_follows(kind: Any) -> None:
    def made(at: Position, first: int = 0) -> Iterator[tuple[int, tuple[Any, ...]]]:
        sources = [kind(), kind()]
        return in_turns(at, lambda e: (sources[e % 2], f"source{e % 2}"), range(first, 8))

    steps = list(made(Position()))
    assert len(steps) >= 6
    for done, (_, image) in enumerate(steps, 1):
        expected = [batch for batch, _ in steps[done:]]
        assert [batch for batch, _ in made(resumed(image))] == expected, done
        at = resumed(image)  # It may begin with the second source.
        assert [batch for batch, _ in made(at, at.epoch)] == expected, done


def anew(g: torch.Generator, epoch: int) -> None:
    g.manual_seed(1234 + epoch)


def late(g: torch.Generator, epoch: int) -> None:
    if epoch == 1:
        g.manual_seed(7)


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("seed", [anew, late])
def test_torch_a_seed_that_the_program_sets_between_passes_counts_in_all_processes_alike(
    seed: Callable[[torch.Generator, int], None], is_kept: bool
) -> None:
    def process(image: Any = None) -> Iterator[tuple[Any, Any]]:
        g = torch.Generator().manual_seed(3)
        loader: Any = DataLoader(Noisy(), 4, shuffle=True, generator=g)
        at = Position()
        if image is not None:
            position, state = image
            at = resumed(position)
        begun = at.epoch

        def choose(epoch: int) -> tuple[Any, str]:
            seed(g, epoch)
            if image is not None and is_kept and epoch == begun:
                g.set_state(state)
            return loader, "loader"

        for batch, position in in_turns(at, choose, range(begun, 4)):
            yield batch.tolist(), (position, g.get_state())

    steps = list(process())
    for done, (_, image) in enumerate(steps, 1):
        expected = [batch for batch, _ in steps[done:]]
        assert [batch for batch, _ in process(image)] == expected, done


def test_torch_a_seed_of_the_programs_has_its_effect_from_the_pass_on_that_follows() -> None:
    def second(seeds: tuple[int, int]) -> list[Any]:
        g = torch.Generator()
        feeder = feeder_of(DataLoader(range(20), 20, shuffle=True, generator=g), SEEDS)
        for epoch, seed in enumerate(seeds):
            g.manual_seed(seed)
            order = [b.tolist() for b in feeder.start(epoch, epoch, 0, None)]
        return order

    assert second((1, 2)) == second((3, 2)) != second((1, 3))


def test_torch_torchs_own_generator_which_steps_seed_has_the_seed_of_state() -> None:
    loader: Any = DataLoader(Noisy(), 4, shuffle=True, generator=torch.default_generator)
    whole = read(loader, 1)
    seed_all(8)
    assert read(loader, 1) == whole


def test_torch_a_source_that_follows_another_takes_nothing_of_it() -> None:
    def made(at: Position, first: int = 0) -> Iterator[tuple[int, tuple[Any, ...]]]:
        one, two, three = Flow(), Flow(), Flow()
        choice = [(one, "one")] * 2 + [(two, "two")] * 2 + [(three, "three")]
        return in_turns(at, lambda e: choice[e], range(first, 5))

    steps = list(made(Position()))
    for done, (_, image) in enumerate(steps, 1):
        at = resumed(image)
        follow = [batch for batch, _ in made(at, at.epoch)]
        assert follow == [batch for batch, _ in steps[done:]], done


def test_torch_two_sources_without_names_that_tell_their_positions_are_refused() -> None:
    one, two = Flow(), Flow()
    sources = Sources(Position())
    for source in (one, two):
        sources.of(source, SEEDS, None)
    sources.see_that_it_is_alone(one, 0)
    sources.see_that_it_is_alone(one, 0)
    with pytest.raises(UserError, match="give both to State by names"):
        sources.see_that_it_is_alone(two, 0)


def test_torch_what_the_program_has_dropped_is_not_held() -> None:
    made: list[Any] = []

    sources = Sources(Position())
    for epoch in range(6):
        source: Any = Flow() if epoch % 2 else DataLoader(Noisy(), 4)
        made.append(weakref.ref(source))
        sources.of(source, SEEDS, "name")
        del source
    assert [source() for source in made] == [None] * 6
    assert not sources._entries


def test_torch_an_error_of_the_next_batch_is_not_that_of_the_step_before() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise KeyError

    fetched = Fetched(batches(), lambda before: None)
    given = iter(fetched)
    assert next(given) == 1 and not fetched.is_over()
    with pytest.raises(KeyError):
        next(given)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.parametrize("source", [DataLoader(Stream()), iter([1, 2]), (i for i in range(3))])
def test_torch_a_loader_that_can_not_tell_its_position_is_refused(source: Any) -> None:
    with pytest.raises(UserError, match="can not tell"):
        feeder_of(source, SEEDS)


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass
class Sample:
    x: Any


class Own:
    def __init__(self) -> None:
        self.x = torch.zeros(2)


def _add_to(part: Any) -> None:
    part += 1


CHANGES: dict[str, tuple[Any, Any]] = {
    "a tensor": ({"x": [torch.zeros(3)]}, lambda b: b["x"][0].add_(1)),
    "a tensor by NumPy": ([torch.zeros(3)], lambda b: _add_to(b[0].numpy())),
    "an array": ([numpy.zeros(3)], lambda b: _add_to(b[0])),
    "a view of an array": ([numpy.zeros((4, 4))[:, 1:3]], lambda b: _add_to(b[0])),
    "in a dataclass": (Sample(numpy.zeros(3)), lambda b: _add_to(b.x)),
    "in a named tuple": (Pair(1, torch.zeros(3)), lambda b: b.y.zero_()),
    "in inference": ([torch.inference_mode()(torch.zeros)(2)], lambda b: _add_to(b[0].numpy())),
}


@pytest.mark.parametrize("case", CHANGES)
def test_torch_a_batch_that_was_changed_in_place_is_noticed(case: str) -> None:
    given, change = CHANGES[case]
    batch = Batch(copy.deepcopy(given), by_contents=True)
    batch.give()
    batch.see_that_it_is_unchanged(1)
    change(batch.give())
    with pytest.raises(UserError, match="step 1 changed its batch in place"):
        batch.see_that_it_is_unchanged(1)


def test_torch_a_body_may_take_parts_out_of_a_batch() -> None:
    kept = Batch(
        (
            *(torch.zeros(2), {"labels": torch.ones(2), "more": [1]}),
            *(Sample([1]), Pair(numpy.ones(1), None)),
        ),
        by_contents=False,
    )
    for _ in range(3):
        x, table, sample, pair = kept.give()
        assert x.grad is None and table["labels"].tolist() == [1, 1] and table["more"] == [1]
        assert sample.x == [1] and type(pair) is Pair and pair.x.tolist() == [1]
        x.requires_grad_().sum().backward()
        table.pop("labels")
        table["more"].append(2)
        sample.x = None
        kept.see_that_it_is_unchanged(1)


class OwnList(list[Any]):
    pass


class OwnTuple(tuple[Any, ...]):
    def __new__(cls, a: Any, b: Any) -> Any:
        return tuple.__new__(cls, (a, b))


class OwnDict(dict[str, Any]):
    def __init__(self, key: str) -> None:
        super().__init__({key: [torch.zeros(1)]})

    def __copy__(self) -> Any:
        raise TypeError("it is not to be copied")


class Encoding(UserDict[str, Any]):
    """A container like that of a tokenizer."""


def _with(thing: Any) -> Any:
    thing.log = [0]
    return thing


@pytest.mark.parametrize(
    "part",
    [
        *(Own(), [lambda: 1], {"x": torch.Generator()}, numpy.ma.array([1], mask=[0])),
        *(numpy.array([[1.0], None], dtype=object), numpy.zeros((1, 1)).view(numpy.recarray)),
        *(_with(OwnList()), _with(OwnTuple(1, 2)), OwnDict("x"), _with(Sample(1))),
        _with(Encoding(x=[1])),
    ],
)
def test_torch_a_batch_of_what_may_change_unseen_is_refused_by_its_type(part: Any) -> None:
    with pytest.raises(
        UserError, match=rf"holds a {type(part).__name__}|(function|Generator), and"
    ):
        Batch((torch.zeros(1), part), by_contents=True)


@pytest.mark.parametrize(
    "part",
    [
        *(Pair(1, [2]), OwnTuple(1, [2]), OwnList([[1]]), Encoding(x=[1]), deque([1], maxlen=2)),
        *(OrderedDict(x=[1]), defaultdict(list, x=[1]), Counter("ab"), pathlib.PurePath("a")),
        *(datetime.datetime.now(), torch.Size((1,)), torch.zeros(2, 2).max(dim=0), {1, "a"}),
        *(numpy.float32(1), numpy.array(["a"]), torch.nn.utils.rnn.pack_sequence([torch.ones(2)])),
    ],
)
def test_torch_a_batch_of_known_containers_is_given_again(part: Any) -> None:
    batch, shown = Batch([part], by_contents=True), str([part])
    for _ in range(3):
        given = batch.give()
        assert type(given[0]) is type(part) and str(given) == shown
        if isinstance(part, (dict, Encoding)):
            given[0]["more"] = 1
        batch.see_that_it_is_unchanged(1)


class Counted(Dataset[Any]):
    """A data set that gives other items each time."""

    count = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        self.count += 1
        return {"x": [torch.tensor(self.count)]}


def test_torch_a_data_set_whose_items_can_not_be_given_again_is_refused() -> None:
    sources = Sources(Position())
    sources.of(DataLoader(Noisy(), 4), SEEDS, None)
    with pytest.raises(UserError, match="item 0 of the data set Counted is not the same"):
        sources.of(DataLoader(Counted(), 4), SEEDS, None)
