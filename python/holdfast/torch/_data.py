"""Feed steps with batches from any position, so that a successor goes on where a process died.

The order of an epoch is derived from (seed, epoch). The random numbers that loading a batch draws
are derived from (seed, epoch, position), whichever process or loader worker loads it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from holdfast._errors import UserError
from holdfast.torch._draws import see_that_none_goes_on
from holdfast.torch._random import Seeds, get_states, note, reseed, seed_of, set_states

_LOOKED_AT: Final = 1000  # So many indices of an order are compared.
_AT_ONCE: Final = 1 << 20  # Indices, or batches of them, that are held at once.

_CURE_OF_AN_ORDER: Final = (
    "draw from torch, random or numpy.random, which are set for each epoch, or derive the "
    "generator in __iter__ from what set_epoch() was given"
)
_CURE_OF_ITEMS: Final = (
    "draw from torch, random or numpy.random, which are set for each item, or derive the "
    "generator from the index: default_rng(index)"
)


def see_items(dataset: Any, ask: Callable[[], Any], but: Collection[Any]) -> None:
    """Raise UserError if a data set holds a generator that is not set for each item.

    `ask` gets an item; generators in `but` are known to be set.
    """
    what = f"the data set {type(dataset).__name__}"
    see_that_none_goes_on(what, dataset, but, _CURE_OF_ITEMS, ask)


def length_of(source: Any) -> int | None:
    """Return the length of `source`; None if it has no end or does not know its length."""
    try:
        return len(source)
    except TypeError:  # Also if a batch sampler's own sampler has no length.
        return None


class _Ticket(NamedTuple):
    """What a sampler gives instead of an index (or of a batch of indices)."""

    seed: Seeds  # For loading it.
    what: Any  # The index, or the batch of indices.


class _Seeded(torch.utils.data.Dataset[Any]):
    """A dataset that takes tickets as indices."""

    def __init__(self, dataset: Any, seen: bool) -> None:
        self.__dict__.update(_dataset=dataset, _seen=seen)  # _seen: by see_items().

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, ticket: _Ticket) -> Any:
        return self._asked(ticket.seed, lambda: self._dataset[ticket.what])

    def __getitems__(self, ticket: _Ticket) -> Any:
        many = getattr(self._dataset, "__getitems__", None)
        if many:
            return self._asked(ticket.seed, lambda: many(ticket.what))
        return self._asked(ticket.seed, lambda: [self._dataset[i] for i in ticket.what])

    def _asked(self, seed: Seeds, ask: Callable[[], Any]) -> Any:
        if not self._seen and get_worker_info() is not None:  # A worker_init_fn has run.
            self.__dict__["_seen"] = True
            see_items(self._dataset, ask, ())
        seed.set()
        return ask()

    def __getattr__(self, name: str) -> Any:
        # A worker_init_fn that uses get_worker_info().dataset reaches the dataset itself.
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_dataset"], name, value)

    def __getstate__(self) -> Any:
        return self.__dict__

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


def _pieces(sampler: Any, seed: Seeds, skip: int) -> Iterator[list[Any]]:
    """Yield what a sampler gives after `skip`. Its random draws follow from `seed` alone.

    The draws must not depend on when the loader asks: with workers it asks before the step, and a
    successor asks in another step. An order of usual length is drawn at once. One that has no end,
    or never reaches it (num_samples=10**10 is common), is drawn index by index. The length is no
    promise: some samplers estimate it, and a DataLoader takes all that they give.
    """
    length = length_of(sampler)
    size = max(length - skip, 1) if length and length <= _AT_ONCE else 1  # Its end may draw, too.
    outer = get_states()
    seed.set()
    order = iter(sampler)
    for _ in islice(order, skip):
        pass
    while True:
        piece = list(islice(order, size))
        own = get_states()
        set_states(outer)
        if not piece:
            return
        yield piece
        outer = get_states()
        set_states(own)


class _Tickets:
    """A sampler that gives tickets from position `skip` on."""

    def __init__(self, sampler: Any, seed: Seeds) -> None:
        self.sampler = sampler
        self.seed = seed
        self.skip = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[_Ticket]:
        seed, skip = self.seed, self.skip
        position = skip
        for piece in _pieces(self.sampler, seed.derive("order"), skip):
            for what in piece:
                yield _Ticket(seed.derive("batch", position), what)
                position += 1


class Mark(NamedTuple):
    """How to bring a new source, which can load a state, to the position of an old one.

    A state that was saved after the last batch of an epoch does not say how the next epoch begins.
    Some sources go on from it, some have to be asked once more, and some begin anew only if they
    were iterated. So a mark repeats what was done.
    """

    state: Any  # Load this first; None: leave the source as it was made.
    epochs: tuple[tuple[bool, int], ...] = ()  # Then iterate: (to the end?, how often).

    def then(self, to_end: bool) -> Mark:
        """Return the mark after an epoch of one more batch, iterated to its end if `to_end`."""
        times = 1
        if self.epochs and self.epochs[-1][0] == to_end:
            times += self.epochs[-1][1]
        return Mark(self.state, (*self.epochs[: -1 if times > 1 else None], (to_end, times)))


class Feeder:
    """One source of batches."""

    generators: Sequence[torch.Generator] = ()  # Those of the program that start() seeds.
    may_be_kept = False  # It serves all passes, and does not keep the user's source alive.
    shows_its_end = True  # The position tells if an epoch is over. False: asking for a batch does.

    def start(self, epoch: int, order: int, skip: int, state: Mark | None) -> Iterator[Any]:
        """Iterate a pass of an epoch from position `skip`; the source stands at `state`.

        The random draws of the pass follow from `order`, a number of its own.
        """
        raise NotImplementedError

    def take_up(self, state: Mark | None) -> None:
        """Bring the source to where its epoch ended, without start()."""

    def recall(self, order: int, seeds: tuple[int, ...]) -> None:
        """Take over the program's seeds with which a predecessor began this pass."""

    def lose(self) -> None:
        """Note that the source has left its mark, so that take_up() brings it back there."""

    def state(self) -> Any:
        """Return the state that start() needs besides the position, after the batch just given."""
        return None

    def items(self) -> Any:
        """Return what gives items by index, if any, to check that equal seeds give equal items."""
        return None

    def see_that_it_is_drawn_again(self, kept: Collection[Any]) -> None:
        """Raise UserError if equal seeds do not give equal data; generators in `kept` may go on."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The program's seeds for `generators`. start() does not change them."""
        return ()

    @property
    def length(self) -> int | None:
        """Batches of an epoch, if known."""
        return None


class _Loader(Feeder):
    """A DataLoader over a map-style dataset."""

    may_be_kept = True  # Its workers may be persistent.

    def __init__(self, loader: DataLoader[Any], seed: Seeds) -> None:
        self._seed = seed
        self._dataset = loader.dataset
        self._loader = copy.copy(loader)  # With its own workers; the user's loader is untouched.
        fields = self._loader.__dict__
        fields["dataset"] = _Seeded(loader.dataset, seen=loader.worker_init_fn is None)
        fields["_iterator"] = None
        which = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        self._tickets = _Tickets(fields[which], seed)
        fields[which] = self._tickets
        self._samplers = _samplers_in(loader)
        found = [loader.generator, *(getattr(s, "generator", None) for s in self._samplers)]
        unique = {id(g): g for g in found if isinstance(g, torch.Generator)}
        self.generators = list(unique.values())

    def start(self, epoch: int, order: int, skip: int, state: Mark | None) -> Iterator[Any]:
        sampler: Any
        for sampler in self._samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        for generator, seed in zip(self.generators, self.seeds, strict=True):
            reseed(generator, seed, order)
        self._tickets.seed = self._seed.derive("data", order)
        self._tickets.skip = skip
        self._seed.derive("epoch", order).set()
        return iter(self._loader)

    def see_that_it_is_drawn_again(self, kept: Collection[Any]) -> None:
        before, states = get_states(), [(g, g.get_state()) for g in self.generators]
        but = (*kept, *self.generators)
        collate: Any = self._loader.collate_fn
        try:
            self._see_order((*but, self._dataset))
            see_items(self._dataset, lambda: self._dataset[0], but)
            see_that_none_goes_on(
                *("collate_fn", collate, but, _CURE_OF_ITEMS), lambda: collate([self._dataset[0]])
            )
        finally:
            set_states(before)
            for generator, state in states:
                generator.set_state(state)

    def _see_order(self, but: Collection[Any]) -> None:
        sampler = self._tickets.sampler

        def ask() -> list[str]:
            if hasattr(sampler, "__next__"):
                raise TypeError("it can be asked only once")
            self._seed.derive("order").set()
            for generator in self.generators:
                generator.manual_seed(1)
            for holder in self._samplers:
                if hasattr(holder, "set_epoch"):
                    holder.set_epoch(0)
            return [str(what) for what in islice(iter(sampler), _LOOKED_AT)]

        for holder in self._samplers:
            if not type(holder).__module__.startswith("torch."):
                what = f"the sampler {type(holder).__name__}"
                see_that_none_goes_on(what, holder, but, _CURE_OF_AN_ORDER, ask)
        try:
            twice = ask(), ask()
        except Exception:
            return  # The sampler needs to be told more first, as start() does.
        if twice[0] != twice[1]:
            kinds = [type(s) for s in (*self._samplers, sampler)]
            own = next((k for k in kinds if not k.__module__.startswith("torch.")), kinds[0])
            raise UserError(
                f"the sampler {own.__name__} gives another order when it is asked twice "
                f"under equal seeds, so a fault would change the data: {_CURE_OF_AN_ORDER}"
            )

    def recall(self, order: int, seeds: tuple[int, ...]) -> None:
        for generator, seed in zip(self.generators, seeds, strict=False):
            note(generator, seed, order)  # State may have set the generator already.
            if seed_of(generator) != seed:
                reseed(generator, seed, order)

    def items(self) -> Any:
        return self._dataset

    @property
    def seeds(self) -> tuple[int, ...]:
        # Every step reseeds torch's own generator. The program seeded it before State.
        common = torch.default_generator
        return tuple(self._seed.torch if g is common else seed_of(g) for g in self.generators)

    @property
    def length(self) -> int | None:
        return length_of(self._tickets)


def _samplers_in(holder: Any) -> list[Any]:
    """Return the samplers of a loader, and the samplers within those."""
    found: list[Any] = []
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(holder, name, None)
        if sampler is not None and sampler is not holder:
            found += [sampler, *_samplers_in(sampler)]
    return found


class _Indexed(Feeder):
    """A list of batches, or anything else with a length and indices."""

    def __init__(self, batches: Sequence[Any], seed: Seeds) -> None:
        self._batches = batches
        self._seed = seed

    def start(self, epoch: int, order: int, skip: int, state: Mark | None) -> Iterator[Any]:
        for i in range(skip, len(self._batches)):
            self._seed.derive("data", order, i).set()
            yield self._batches[i]

    def see_that_it_is_drawn_again(self, kept: Collection[Any]) -> None:
        if (items := self.items()) is not None:
            before = get_states()
            try:
                see_items(items, lambda: items[0], kept)
            finally:
                set_states(before)

    def items(self) -> Any:
        return None if isinstance(self._batches, (list, tuple)) else self._batches

    @property
    def length(self) -> int | None:
        return len(self._batches)


class Whereabouts:
    """Whether a source with a position of its own is at its mark. This outlives the feeder."""

    is_there = False


class _Stateful(Feeder):
    """An iterable that can save and load its position (state_dict, load_state_dict)."""

    shows_its_end = False  # The end of one epoch may be the beginning of the next.

    def __init__(self, source: Any, seed: Seeds, at: Whereabouts) -> None:
        self._source = source
        self._seed = seed
        self._at = at

    def lose(self) -> None:
        self._at.is_there = False

    def take_up(self, state: Mark | None) -> None:
        if not self._at.is_there and state is not None:
            if state.state is not None:
                self._source.load_state_dict(state.state)
            for to_end, times in state.epochs:
                for _ in range(times):
                    batches = iter(self._source)
                    if next(batches, self) is not self and to_end:
                        next(batches, None)
        self._at.is_there = True

    def start(self, epoch: int, order: int, skip: int, state: Mark | None) -> Iterator[Any]:
        self._at.is_there = self._at.is_there and not skip
        self.take_up(state)
        holder: Any
        for holder in (self._source, getattr(self._source, "sampler", None)):
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)
        self._seed.derive("epoch", order).set()
        return iter(self._source)

    def state(self) -> Any:
        return copy.deepcopy(self._source.state_dict())


class Fetched:
    """The batches of an epoch, each fetched when it is wanted or one step before."""

    def __init__(self, batches: Iterator[Any], prepare: Callable[[int], None]) -> None:
        """`prepare(k)` is called before a batch is fetched, k steps before its own step begins."""
        self._batches = batches
        self._prepare = prepare
        self._next: list[Any] = []  # At most one.
        self._error: Exception | None = None  # Raised in place of the next batch.
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        while not self._ended:
            self._fetch(0)
            if self._error is not None:
                raise self._error
            if self._next:
                yield self._next.pop()

    def is_over(self) -> bool:
        """Fetch the next batch ahead, in the step before its own; return whether there is none."""
        if not self._ended:
            try:
                self._fetch(1)
            except Exception as error:
                self._error = error  # The next step fails, not the one under way.
        return self._ended

    def _fetch(self, before: int) -> None:
        if self._next or self._error:
            return
        self._prepare(before)
        try:
            self._next.append(next(self._batches))
        except StopIteration:
            self._ended = True


def tells_its_position(source: Any) -> bool:
    """Whether the source that a user gave to steps() can tell its position."""
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def feeder_of(source: Any, seed: Seeds, at: Whereabouts | None = None) -> Feeder:
    """Return a feeder for the user's source. `at`: from an earlier feeder of that source."""
    if tells_its_position(source):
        return _Stateful(source, seed, at or Whereabouts())
    if isinstance(source, DataLoader):
        if isinstance(source.dataset, IterableDataset):
            raise UserError(
                "this DataLoader reads an IterableDataset and can not tell its position; use "
                "torchdata's StatefulDataLoader, or give the loader state_dict() and "
                "load_state_dict()"
            )
        return _Loader(source, seed)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _Indexed(source, seed)
    raise UserError(
        f"steps() can not tell the position of a {type(source).__name__}; give it a DataLoader, a "
        "sequence of batches, or an iterable with state_dict() and load_state_dict()"
    )
