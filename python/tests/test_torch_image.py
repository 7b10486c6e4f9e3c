"""Images bring back everything that a step depends on, bit for bit."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from holdfast._errors import UserError  # noqa: E402
from holdfast.torch._image import Image, Kept  # noqa: E402
from holdfast.torch._versions import Between  # noqa: E402

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {"amsgrad": True},
    "AdamW": {"fused": True},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adamax": {},
    "ASGD": {},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
}


def see_nothing(_: object) -> None:
    """Take whatever has made an image."""


class Setup:
    """A model, its optimizer, a scheduler and a generator, and the image of them."""

    def __init__(self, name: str, seed: int, **arguments: Any) -> None:
        torch.manual_seed(seed)
        norm = [] if name == "Muon" else [nn.BatchNorm1d(8)]
        self.model = nn.Sequential(
            nn.Linear(4, 8, bias=name != "Muon"), *norm, nn.Linear(8, 2, bias=name != "Muon")
        )
        self.optimizer = getattr(torch.optim, name)(self.model.parameters(), lr=0.1, **arguments)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.generator = torch.Generator().manual_seed(seed)
        self.kept = Kept()
        for key in ("model", "optimizer", "scheduler", "generator"):
            self.kept.add(key, getattr(self, key))
        self.image = Image(self.kept, {"n": 0})

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.randn(6, 4, generator=self.generator)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()

    def bytes(self) -> list[Any]:
        tensors = [*self.model.parameters(), *self.model.buffers()]
        for parameter in self.model.parameters():
            tensors += [v for v in self.optimizer.state[parameter].values() if torch.is_tensor(v)]
        rates = [g["lr"] for g in self.optimizer.param_groups]
        return [t.detach().clone().numpy().tobytes() for t in tensors] + rates


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torch_every_optimizer_goes_on_from_an_image_with_the_same_bits(name: str) -> None:
    one = Setup(name, 1, **OPTIMIZERS[name])
    memory = bytearray(one.image.bytes)
    one.steps(3)
    one.image.write(memoryview(memory), {"n": 3}, with_gradients=False)
    at_three = one.bytes()
    one.steps(2)
    at_five = one.bytes()
    assert at_three != at_five

    other = Setup(name, 2, **OPTIMIZERS[name])  # A new process: other parameters, no state yet.
    assert other.image.bytes == one.image.bytes
    for setup in (one, other):
        assert setup.image.read(memoryview(memory), see_nothing)["n"] == 3
        assert setup.bytes() == at_three
        setup.steps(2)
        assert setup.bytes() == at_five


def test_torch_an_image_is_as_large_where_a_snapshot_of_the_optimizer_was_loaded() -> None:
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(100)))
    optimizer = torch.optim.Adam(model.parameters())

    def image(**more: Any) -> Image:
        kept = Kept()
        for name, thing in {"model": model, "optimizer": optimizer, **more}.items():
            kept.add(name, thing)
        return Image(kept, {})

    first = image()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    second = image()
    assert second.bytes == first.bytes  # Needed, so that a successor can use the image.

    room: dict[str, bytes] = {}  # Key-values that can be put once.
    first.agree(lambda mine: room.setdefault("room", mine))
    larger = image(seen=list(range(1 << 20)))
    assert larger.bytes > first.bytes
    larger.agree(lambda mine: room.setdefault("room", mine))
    assert larger.bytes == first.bytes
    memory = bytearray(first.bytes)
    second.write(memoryview(memory), {}, with_gradients=True)
    with pytest.raises(UserError, match="outgrown"):
        larger.write(memoryview(memory), {}, with_gradients=False)


def test_torch_an_image_of_the_beginning_takes_the_optimizers_state_away() -> None:
    setup = Setup("Adam", 1)
    memory = bytearray(setup.image.bytes)
    setup.image.write(memoryview(memory), {}, with_gradients=False)
    setup.steps(2)
    setup.image.read(memoryview(memory), see_nothing)
    assert not any(setup.optimizer.state[p] for p in setup.model.parameters())


def test_torch_gradients_are_kept_where_a_step_made_no_update() -> None:
    setup = Setup("SGD", 1)
    memory = bytearray(setup.image.bytes)
    setup.model(torch.ones(3, 4)).sum().backward()
    expected = [p.grad.clone() for p in setup.model.parameters()]
    setup.image.write(memoryview(memory), {}, with_gradients=True)
    setup.optimizer.zero_grad()
    setup.image.read(memoryview(memory), see_nothing)
    assert all(torch.equal(p.grad, e) for p, e in zip(setup.model.parameters(), expected))


def test_torch_a_parameter_that_moved_is_still_written() -> None:
    setup = Setup("SGD", 1)
    memory = bytearray(setup.image.bytes)
    setup.image.write(memoryview(memory), {}, with_gradients=False)
    weight = setup.model[0].weight
    weight.data = torch.full_like(weight, 7.0)
    setup.image.write(memoryview(memory), {}, with_gradients=False)
    weight.data = torch.zeros_like(weight)
    setup.image.read(memoryview(memory), see_nothing)
    assert bool((weight == 7.0).all())


def test_torch_what_is_not_dense_is_kept_as_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(300, 200)  # More than a page.
    model.weight.data = torch.randn(300, 200).t()
    model.register_buffer("strided", torch.randn(128)[::2])
    model.register_buffer("odd", torch.arange(5001, dtype=torch.uint8)[1:])
    model.register_buffer("empty", torch.empty(0))
    kept = Kept()
    kept.add("model", model)
    image = Image(kept, {})
    memory = bytearray(image.bytes)
    usual, slow = torch._foreach_copy_, []

    def noted(targets: list[Any], sources: list[Any]) -> None:
        slow.extend(tuple(source.shape) for source in sources)
        usual(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    image.write(memoryview(memory), {}, with_gradients=False)
    # Dense tensors are copied as bytes, which takes half the time.
    assert slow == [(200, 300), (64,)]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for value in model.state_dict().values():
            value.zero_()
    image.read(memoryview(memory), see_nothing)
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name]), name


def test_torch_what_has_no_bytes_of_its_own_is_refused_or_copied_by_torch() -> None:
    model = nn.Linear(2, 2)
    for what in (torch.empty(4, device="meta"), torch.eye(4).to_sparse()):
        with pytest.raises(UserError, match=r"tensor `table` is .*; State keeps"):
            Kept().add("table", what)
        model.register_buffer("odd", what)
        with pytest.raises(UserError, match=r"buffer `odd` is .*; State keeps"):
            Kept().add("model", model)
    model.odd = TwoTensor(torch.ones(4), torch.ones(4))
    kept = Kept()
    kept.add("model", model)
    image = Image(kept, {})
    memory = memoryview(bytearray(image.bytes))
    image.write(memory, {}, with_gradients=False)  # Without address: bytes can not be read.
    kept_there = image.tensors(memory)["buffer", "model", ".odd"]
    assert kept_there.tolist() == [1.0] * 4
    model.odd = torch.empty(4, device="meta")
    with pytest.raises(NotImplementedError):  # Raised by torch itself.
        image.write(memory, {}, with_gradients=False)


def test_torch_another_model_is_refused_by_the_name_of_what_differs() -> None:
    one = Setup("SGD", 1)
    memory = bytearray(one.image.bytes)
    one.image.write(memoryview(memory), {}, with_gradients=False)
    other = Setup("SGD", 1)
    other.kept.models["model"][0].weight.data = torch.zeros(9, 4)
    with pytest.raises(UserError, match=r"`0.weight` is torch.float32 \[9, 4\]"):
        other.image.read(memoryview(memory), see_nothing)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.kept.add("more", torch.zeros(3)), r"`more` is torch.float32 \[3\], .*missing"),
        (lambda s: s.kept.parameters.pop(), "`2.bias` is missing, in the state it is torch.fl"),
        (lambda s: s.kept.others.pop("generator"), "`generator` is missing, .* is kept"),
        (lambda s: s.kept.add("list", [1]), "`list` is kept, in the state it is missing"),
        (
            lambda s: s.kept.optimizers.update(optimizer=torch.optim.Rprop(s.model.parameters())),
            "`optimizer` is Rprop, in the state it is SGD",
        ),
    ],
)
def test_torch_a_program_that_keeps_other_things_after_a_restart_is_told_which(
    change: Any, sentence: str
) -> None:
    one, other = Setup("SGD", 1), Setup("SGD", 1)
    memory = bytearray(one.image.bytes)
    one.image.write(memoryview(memory), {}, with_gradients=False)
    other.image.read(memoryview(memory), see_nothing)
    change(other)
    with pytest.raises(UserError, match=f"changed between restarts: {sentence}"):
        other.image.read(memoryview(memory), see_nothing)


def test_torch_an_optimizer_with_state_of_its_own_is_refused() -> None:
    model = nn.Linear(2, 2)
    kept = Kept()
    kept.add("optimizer", torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UserError, match="LBFGS can not be kept"):
        Image(kept, {})


def test_torch_a_thing_without_state_dict_is_refused_by_its_name() -> None:
    with pytest.raises(UserError, match="`clock` is a object"):
        Kept().add("clock", object())


def test_torch_outgrowing_the_room_is_said() -> None:
    setup = Setup("SGD", 1)
    things: list[int] = []
    setup.kept.add("things", things)
    memory = bytearray(setup.image.bytes)
    things.extend(range(10**6))
    with pytest.raises(UserError, match="outgrown"):
        setup.image.write(memoryview(memory), {}, with_gradients=False)


def test_torch_what_is_zeroed_or_forgotten_between_passes_does_not_come_back() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = Kept()
    kept.add("model", model)
    kept.add("optimizer", optimizer)
    model(torch.ones(1, 2)).sum().backward()  # Only adds to the gradients.
    for parameter in model.parameters():
        optimizer.state[parameter].update(count=3, average=torch.ones(2))
    image = Image(kept, {})
    memory = memoryview(bytearray(image.bytes))
    image.write(memory, {}, with_gradients=True)
    optimizer.zero_grad()
    optimizer.state.clear()
    model.bias.grad = torch.full((2,), 5.0)
    between = Between(kept, image.tensors(memory))
    image.read(memory, see_nothing)
    assert model.weight.grad is not None and optimizer.state[model.bias]["count"] == 3
    between.put_back(kept)
    assert model.weight.grad is None and model.bias.grad.tolist() == [5.0, 5.0]
    assert not any(optimizer.state[parameter] for parameter in model.parameters())


def test_torch_after_it_was_brought_back_nothing_has_changed() -> None:
    setup = Setup("AdamW", 1)
    setup.steps(2)
    memory = memoryview(bytearray(setup.image.bytes))
    setup.image.write(memory, {}, with_gradients=False)
    before = setup.bytes()
    setup.image.read(memory, see_nothing)
    between = Between(setup.kept, setup.image.tensors(memory))
    setup.steps(1)
    setup.image.read(memory, see_nothing)
    between.put_back(setup.kept)
    assert setup.bytes() == before


def test_torch_a_generator_has_changed_if_it_has_drawn_and_only_then() -> None:
    setup = Setup("SGD", 1)
    held = [setup.generator.get_state() for _ in range(3)]  # So that the next state lies elsewhere.
    first = setup.kept.digests()
    held.append(setup.generator.get_state())
    assert setup.kept.digests() == first
    torch.rand(1, generator=setup.generator)
    second = setup.kept.digests()
    assert [name for name in first if first[name] != second[name]] == ["generator"]


def test_torch_an_optimizer_that_wraps_another_is_refused_by_name() -> None:
    class Wrapping(torch.optim.SGD):
        """Wraps an optimizer as torch's ZeroRedundancyOptimizer does."""

        def __init__(self, optim: torch.optim.Optimizer) -> None:
            self.optim = optim

    inner = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(UserError, match=r"Wrapping can not be kept: .* use Adam alone"):
        Kept().add("optimizer", Wrapping(inner))


def test_torch_what_is_kept_within_a_dict_stays_the_same_object() -> None:
    kept, best = Kept(), {"loss": 3.0, "history": {"loss": [1.0]}, "seen": {1}}
    kept.add("best", best)
    history, losses, seen = best["history"], best["history"]["loss"], best["seen"]  # type: ignore
    objects = pickle.loads(pickle.dumps(kept.objects()))
    losses.append(2.0)
    history["accuracy"] = []
    seen.add(2)
    kept.restore({}, set(), objects)
    assert best == {"loss": 3.0, "history": {"loss": [1.0]}, "seen": {1}}
    assert best["history"] is history and history["loss"] is losses and best["seen"] is seen


def test_torch_what_all_ranks_have_alike_may_come_from_any_of_them() -> None:
    ranks = [Setup("AdamW", 3), Setup("AdamW", 3)]
    images, views = [], []
    for rank, program in enumerate(ranks):
        program.steps(3)
        with torch.no_grad():  # Each rank has seen other data.
            program.model[1].running_mean += rank
        program.generator.manual_seed(rank)
        common = {id(parameter) for parameter in program.model.parameters()}
        images.append(Image(program.kept, {"n": rank}, common))
        views.append(memoryview(bytearray(images[rank].bytes)))
        images[rank].write(views[rank], {"n": rank}, with_gradients=False)
    assert images[0].common == images[1].common > 0
    expected = ranks[1].bytes()
    # Rank 1 is lost. Its holder has its own part, and rank 0 has the common part.
    lost = memoryview(bytearray(b"\xa5" * images[1].bytes))
    own = images[1].common
    for offset, size in images[1].used:
        first = max(offset, own)
        lost[first : offset + size] = views[1][first : offset + size]
    with pytest.raises(UserError, match="is not laid out as its own"):
        images[1].read(lost, see_nothing)
    lost[:own] = views[0][:own]
    ranks[1].steps(2)
    assert images[1].read(lost, see_nothing)["n"] == 1
    assert ranks[1].bytes() == expected
    # Each step passes only this to the holder: no common part, no unused room.
    passed = sum(min(size, max(0, offset + size - own)) for offset, size in images[1].used)
    assert passed < 10_000 < images[1].bytes


def test_torch_a_fused_optimizer_is_measured_without_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from holdfast.torch import _optimizers

    seen = []
    measure = _optimizers._state_after_a_step

    def watched(optimizer: torch.optim.Optimizer, whole: object, device: str) -> object:
        seen.append(device)
        return measure(optimizer, whole, device)  # type: ignore[arg-type]

    monkeypatch.setattr(_optimizers, "_state_after_a_step", watched)
    parameter = torch.nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.AdamW([parameter], fused=True)
    _, room, tensors = _optimizers.room_of_state(optimizer, {}, ())
    assert seen == ["meta"]
    parameter.grad = torch.ones(64)
    optimizer.step()
    made = optimizer.state[parameter].values()
    assert len(made) == tensors
    assert room >= sum(one.numel() * one.element_size() for one in made)
