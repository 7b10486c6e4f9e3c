"""Draw training programs as PyTorch's users write them, by combining common parts at random.

program(seed) returns a program: a model, how it is wrapped, an optimizer and its schedule, where
its data come from, what it keeps from step to step, how its loop is written, and what it does
between epochs. The program keeps the rule of docs/pytorch.md; broken(seed) returns one that breaks
the rule in one place. A program writes digests of everything into `result-<rank>` at its end, and
kills itself where its configuration says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from textwrap import indent

from drawn_parts import HEAD

OPTIMIZERS = [
    "SGD({}, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)",
    "SGD({}, lr=0.05)",
    "SGD({}, lr=0.05, momentum=0.8, foreach=True)",
    "Adam({}, lr=3e-3)",
    "AdamW({}, lr=3e-3, weight_decay=0.05, amsgrad=True)",
    "AdamW({}, lr=3e-3, fused=True)",
    "RMSprop({}, lr=1e-3, momentum=0.5, centered=True)",
    "Adagrad({}, lr=1e-2)",
    "NAdam({}, lr=2e-3)",
    "RAdam({}, lr=3e-3)",
    "Adamax({}, lr=2e-3)",
    "Rprop({}, lr=1e-3)",
    "Adadelta({}, lr=0.5)",
    "ASGD({}, lr=1e-2, t0=5)",
]
PER_STEP = [
    "StepLR(optimizer, 3, 0.9)",
    "LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 6))",
    "OneCycleLR(optimizer, max_lr=0.02, total_steps=500, cycle_momentum=False)",
    "SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), "
    "lr_scheduler.CosineAnnealingLR(optimizer, 30)], milestones=[4])",
    "CosineAnnealingWarmRestarts(optimizer, 5)",
]
PER_EPOCH = [
    "ExponentialLR(optimizer, 0.8)",
    "MultiStepLR(optimizer, [1, 2], 0.5)",
    "CosineAnnealingLR(optimizer, 4)",
]
PLATEAU = "ReduceLROnPlateau(optimizer, factor=0.5, patience=0)"
DDP_OPTIONS = [
    "",
    "",
    ", gradient_as_bucket_view=True",
    ", broadcast_buffers=False",
    ", bucket_cap_mb=0.001",
    ", find_unused_parameters=True",
    ", static_graph=True",
]


@dataclass
class Program:
    """A drawn program, and where kills can be: in which steps, epochs, and places of an epoch."""

    text: str
    ranks: int
    steps: int
    epochs: int
    places: list[str]


@dataclass
class Parts:
    """The parts of a program that is being written."""

    draw: random.Random
    kept: list[str] = field(default_factory=list)  # Arguments of State.
    vars: list[str] = field(default_factory=list)  # Arguments of state.vars().
    ends: list[str] = field(default_factory=list)  # Expressions that are digested.
    lines: list[str] = field(default_factory=list)

    def chance(self, p: float) -> bool:
        return self.draw.random() < p

    def add(self, text: str) -> None:
        self.lines.append(text)

    def keep(self, name: str, made: str, end: str = "") -> None:
        """Add a thing that State keeps under its name."""
        self.add(f"{name} = {made}")
        self.kept.append(f"{name}={name}")
        self.ends.append(end or name)

    def var(self, name: str, first: str) -> None:
        """Add a plain value that is kept."""
        self.vars.append(f"{name}={first}")
        self.ends.append(f"run.{name}")


class Drawing:
    """One program's choices, in the order in which they depend on each other."""

    def __init__(self, seed: int) -> None:
        self.parts = Parts(random.Random(f"program {seed}"))
        draw, chance = self.parts.draw, self.parts.chance
        self.ranks = draw.choice([1, 2, 2, 2, 3])
        self.wrap = draw.choice(["ddp", "ddp", "ddp", "ddp", "fsdp", "by hand"])
        self.loop = draw.choice(["steps", "epochs", "epochs", "two", "own", "own"])
        models = ["Plain", "Conv", "Former"]
        self.model = draw.choice(
            models if self.wrap == "fsdp" else [*models, "Recurrent", "Tied", "Frozen"]
        )
        self.epochs, self.batches = draw.choice([2, 3]), draw.choice([4, 6])
        self.micro = draw.choice([1, 1, 1, 2, 3])  # Batches for each update.
        self.scaler = chance(0.2) and self.wrap != "fsdp"
        self.has_epochs = self.loop in ("epochs", "two")
        schedules = ["", "step", "step", *(["epoch", "loss"] if self.has_epochs else [])]
        self.schedule = draw.choice(schedules)
        self.evaluates = (self.has_epochs or self.loop == "own") and chance(0.6)
        self.saves = self.has_epochs and self.wrap != "fsdp" and chance(0.4)
        self.stops = draw.choice(["", "", "step", "epoch" if self.has_epochs else "step"])
        self.average = draw.choice(["", "", "swa", "copy"]) if self.wrap != "fsdp" else ""
        self.two = self.wrap == "ddp" and chance(0.15)
        self.tracks = set(draw.sample(["losses", "mean", "meter", "memory", "table"], k=2))
        self.clips, self.core = chance(0.4), "model.module" if self.wrap == "ddp" else "model"

    @property
    def count(self) -> int:
        """The number of batches of a rank in a pass over the data."""
        return self.batches * (1 if self.loop == "own" else self.micro)

    def setup(self) -> None:
        p, draw = self.parts, self.parts.draw
        p.add("hf.init()\ntorch.manual_seed(7)\nrandom.seed(7)\nnp.random.seed(7)")
        p.add("drawn = torch.Generator().manual_seed(3)")
        p.add("rank, size = dist.get_rank(), dist.get_world_size()")
        p.add(f"X = torch.randn({8 * self.ranks * self.count}, 20, generator=drawn)")
        p.add("Y = (X[:, :5] + 0.3 * torch.randn(len(X), 5, generator=drawn)).argmax(1)")
        if p.chance(0.3):  # Exchange something before State.
            p.add("share = torch.tensor([dist.get_rank() + 1.0])\ndist.all_reduce(share)")
            p.add("X = X / share.item()\nnames = [None] * dist.get_world_size()")
            p.add("dist.all_gather_object(names, f'rank {dist.get_rank()}')\ndist.barrier()")
            p.ends.append("names")
        p.add(f"model = {self.model}()")
        if self.wrap == "ddp":
            options = DDP_OPTIONS[:-1] if self.micro > 1 else DDP_OPTIONS
            p.add(f"model = DDP(model{draw.choice(options)})")
        elif self.wrap == "fsdp":
            p.add("for part in model.children():\n    if list(part.parameters()):")
            p.add("        fully_shard(part)\nfully_shard(model)")
        self._optimizer()
        self._data()
        if "meter" in self.tracks:
            p.keep("meter", "Meter()", "vars(meter)")
        p.add(f"state = hf.State(model, optimizer, {', '.join(p.kept)})")
        self._vars()
        p.ends += ["model.state_dict()", "optimizer.state_dict()", "state.n", "state.stopped"]

    def _vars(self) -> None:
        p = self.parts
        p.var("best", "1e9")
        p.var("bad", "0")
        p.var("history", "[]")
        if "losses" in self.tracks:
            p.var("losses", "[]")
        if "mean" in self.tracks:
            p.var("mean", "[0.0, 0]")
        if "memory" in self.tracks:
            p.var("memory", "torch.zeros(5)")
        if "table" in self.tracks:
            p.var("table", "np.zeros((5, 5), dtype=int)")
        p.add(f"run = state.vars({', '.join(p.vars)})")
        if self.saves:
            p.add(
                "if state.n == 0 and os.path.exists(f'{FOLDER}/snapshot.pt'):\n"
                f"    {self.core}.load_state_dict(torch.load(f'{{FOLDER}}/snapshot.pt'))"
            )

    def _optimizer(self) -> None:
        p, draw = self.parts, self.parts.draw
        p.add("trained = [q for q in model.parameters() if q.requires_grad]")
        who = "trained"
        if p.chance(0.3):
            p.add("matrices = [q for q in trained if q.dim() > 1]")
            p.add("others = [q for q in trained if q.dim() <= 1]")
            who = "[{'params': matrices, 'weight_decay': 0.01}, {'params': others}]"
        sharded = self.wrap == "fsdp"  # Not all optimizers work on DTensors.
        usable = [o for o in OPTIMIZERS if not sharded or ("fused" not in o and "Rprop" not in o)]
        p.add(f"optimizer = torch.optim.{draw.choice(usable).format(who)}")
        if self.two:
            p.keep("critic", "DDP(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)))",
                   "critic.state_dict()")  # fmt: skip
            p.keep("second", "torch.optim.Adam(critic.parameters())", "second.state_dict()")
        if self.schedule:
            among = {"step": PER_STEP, "epoch": PER_EPOCH, "loss": [PLATEAU]}[self.schedule]
            p.keep("scheduler", f"lr_scheduler.{draw.choice(among)}", "scheduler.last_epoch")
        if self.scaler:
            p.keep("scaler", "torch.amp.GradScaler('cpu', init_scale=256.0, growth_interval=4)",
                   "scaler.state_dict()")  # fmt: skip
        if self.average == "swa":
            rule = "swa_utils.get_ema_multi_avg_fn(0.9)"
            p.keep("ema", f"swa_utils.AveragedModel({self.core}, multi_avg_fn={rule})",
                   "ema.state_dict()")  # fmt: skip
        elif self.average:
            p.keep("ema", f"copy.deepcopy({self.core}).eval().requires_grad_(False)",
                   "ema.state_dict()")  # fmt: skip

    def _data(self) -> None:
        p, draw = self.parts, self.parts.draw
        if self.loop == "own":
            self.source = draw.choice(["draw", "generator", "cursor", "ahead", "ahead"])
            if self.source == "generator":
                p.keep("gen", "torch.Generator().manual_seed(11)", "gen.get_state()")
            elif self.source == "cursor":
                p.var("cursor", "0")
            elif self.source == "ahead":
                p.var("ahead", "None")
            return
        self.source = draw.choice(["tensors", "augmented", "workers", "stream"])
        if self.loop == "two":
            p.add("mine = TensorDataset(X[rank::size], Y[rank::size])")
            p.add("tuned = DataLoader(mine, 8, shuffle=True)")
        if self.source == "stream":
            p.add(f"loader = Stream(dist.get_rank(), X, Y, {self.count})")
            if p.chance(0.4):
                p.kept.append("loader=loader")
            return
        p.add(f"data = {'Augmented' if self.source == 'augmented' else 'TensorDataset'}(X, Y)")
        p.add(f"sampler = DistributedSampler(data, shuffle={p.chance(0.7)})")
        workers = {"tensors": 0, "augmented": draw.choice([0, 2]), "workers": 2}[self.source]
        p.add(f"loader = DataLoader(data, 8, sampler=sampler, num_workers={workers})")

    def _batch(self) -> str:
        drawn = "torch.randint(len(X), (8,))"
        if self.source == "ahead":  # As in nanoGPT: drawn at the end of the step before.
            return (
                f"if run.ahead is None:\n    run.ahead = {drawn}\n"
                f"i, run.ahead = run.ahead, {drawn}\nx, y = X[i], Y[i]\n"
            )
        i = {
            "draw": drawn,
            "generator": "torch.randint(len(X), (8,), generator=gen)",
            "cursor": "(torch.arange(8) + 8 * (run.cursor * size + rank)) % len(X)",
        }[self.source]
        more = "run.cursor += 1\n" if self.source == "cursor" else ""
        return f"i = {i}\n{more}x, y = X[i], Y[i]\n"

    def _gradients(self, ends: str) -> str:
        """Return the passes of a batch. `ends`: an expression, whether the batch ends an update."""
        p = self.parts
        text = ""
        if p.chance(0.3):
            text += "x = x + 0.01 * torch.randn_like(x)\n"
        if p.chance(0.3):
            text += "x = x * (1 + 0.01 * random.random() + 0.01 * np.random.rand())\n"
        amp = "with torch.autocast('cpu', torch.bfloat16):\n    " if p.chance(0.25) else ""
        text += f"{amp}out = model(x).float()\n"
        if "memory" in self.tracks:
            text += "out = out + 0.1 * run.memory\nrun.memory = out.detach().mean(0)\n"
        text += "loss = F.cross_entropy(out, y)\n"
        if self.two:
            text += "loss = loss + 0.01 * critic(out).mean()\n"
        text += "at('forward', state.n + 1)\n"
        part = f"loss / {self.micro}" if self.micro > 1 else "loss"
        text += f"scaler.scale({part}).backward()\n" if self.scaler else f"({part}).backward()\n"
        if self.micro > 1 and self.wrap == "ddp" and not self.two and p.chance(0.6):
            text = f"with contextlib.nullcontext() if {ends} else model.no_sync():\n" + indent(
                text, "    "
            )
        return text

    def _update(self) -> str:
        text = ""
        if self.wrap == "by hand":
            text += "for q in trained:\n    dist.all_reduce(q.grad)\n    q.grad /= size\n"
        if self.clips:
            text += "scaler.unscale_(optimizer)\n" if self.scaler else ""
            text += "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        text += "at('update', state.n + 1)\n"
        text += "scaler.step(optimizer)\nscaler.update()\n" if self.scaler else "optimizer.step()\n"
        text += "second.step()\nsecond.zero_grad()\n" if self.two else ""
        text += "scheduler.step()\n" if self.schedule == "step" else ""
        if self.average == "swa":
            text += f"ema.update_parameters({self.core})\n"
        elif self.average:
            pairs = f"zip(ema.parameters(), {self.core}.parameters())"
            text += f"for a, b in {pairs}:\n    a.mul_(0.9).add_(b.detach(), alpha=0.1)\n"
            text += f"for a, b in zip(ema.buffers(), {self.core}.buffers()):\n    a.copy_(b)\n"
        if not self.schedule and self.parts.chance(0.3):
            text += "for group in optimizer.param_groups:\n"
            text += "    group['lr'] = 0.01 / (1 + state.n) ** 0.5\n"
        return text

    def _end_of_step(self) -> str:
        text = ""
        if self.parts.chance(0.3):
            text += "mean = loss.detach().clone()\ndist.all_reduce(mean)\nloss = mean / size\n"
        lines = {
            "losses": "run.losses.append(loss.item())\n",
            "mean": "run.mean = [run.mean[0] + loss.item(), run.mean[1] + 1]\n",
            "meter": "meter.update(loss.item())\n",
            "table": "np.add.at(run.table, (y.numpy(), out.detach().argmax(1).numpy()), 1)\n",
        }
        text += "".join(line for what, line in lines.items() if what in self.tracks)
        if self.stops == "step":
            when = max(2, int(self.epochs * self.count * self.parts.draw.choice([0.3, 0.6, 0.9])))
            who = self.parts.draw.randrange(self.ranks)
            text += f"if rank == {who} and state.n + 1 >= {when}:\n    state.stop()\n"
        return text + "at('end', state.n + 1)\n"

    def body(self) -> str:
        p = self.parts
        drop = p.draw.choice(["", "model.", "optimizer."])  # Before, or after the update.
        set_to_none = p.draw.choice(["", "set_to_none=False"])
        zero = f"{drop or 'optimizer.'}zero_grad({set_to_none})\n"
        begin = "at('begin', state.n + 1)\n"
        last = f"(state.batch + 1) % {self.micro} == 0"
        if self.micro == 1 and drop:
            begin += zero
        if self.loop == "own" and self.micro > 1:
            each = self._batch() + self._gradients(f"micro == {self.micro - 1}")
            text = zero + f"for micro in range({self.micro}):\n" + indent(each, "    ")
        else:
            text = (self._batch() if self.loop == "own" else "") + self._gradients(last)
        update = self._update()
        if self.micro > 1 and self.loop != "own":
            update = f"if {last}:\n" + indent(update + zero, "    ")
        elif self.micro == 1 and not drop:
            update += zero
        return begin + text + update + self._end_of_step()

    def _functions(self) -> None:
        """Add the functions that state.once() calls."""
        p = self.parts
        if self.evaluates:
            p.add(
                "def evaluate(place):\n    model.eval()\n    with torch.no_grad():\n"
                "        seen, known = X[rank::size], Y[rank::size]\n"
                "        out = model(seen)\n"
                "        loss = F.cross_entropy(out, known, reduction='sum')\n"
                "        sums = torch.stack([loss, (out.argmax(1) == known).sum()])\n"
                "    at('exchange', place)\n    dist.all_reduce(sums)"
            )
            if p.chance(0.4):
                p.add("    hits = [None] * size")
                p.add("    dist.all_gather_object(hits, {'rank': rank})")
            p.add("    model.train()" if p.chance(0.5) else "    pass")
            p.add("    return sums.tolist()")
        if self.saves:
            p.add(
                "def save(place):\n    if rank == 0:\n"
                f"        torch.save({self.core}.state_dict(), f'{{FOLDER}}/snapshot.new')\n"
                "        os.replace(f'{FOLDER}/snapshot.new', f'{FOLDER}/snapshot.pt')\n"
                "    at('save', place)"
            )

    def _between(self) -> str:
        """Return what follows the steps of an epoch."""
        text = "at('between', epoch)\nmean = 1.0\n"
        if "mean" in self.tracks:
            text += "mean = run.mean[0] / max(1, run.mean[1])\n"
        text += "run.history.append(mean)\n"
        if self.evaluates:
            text += "sums = state.once(evaluate, epoch)\n"
        text += "scheduler.step()\n" if self.schedule == "epoch" else ""
        if self.schedule == "loss":
            text += f"scheduler.step({'sums[0]' if self.evaluates else 'mean'})\n"
        text += "state.once(save, epoch)\n" if self.saves else ""
        text += "at('after', epoch)\n"
        found = "sums[0]" if self.evaluates else "mean"
        text += f"run.best, run.bad = min(run.best, {found}), run.bad + ({found} >= run.best)\n"
        if self.stops == "epoch":
            text += f"if rank == {self.parts.draw.randrange(self.ranks)} and run.bad >= 1:\n"
            text += "    state.stop()\n"
        return text

    def loops(self) -> None:
        p = self.parts
        self._functions()
        body = self.body()
        if self.evaluates and self.loop != "own" and p.chance(0.4):
            p.add("first = state.once(evaluate, -1)")
            p.ends.append("first")
        if self.loop == "own":
            p.add(f"while state.n < {self.epochs * self.batches} and not state.stopped:")
            if self.evaluates and p.chance(0.5):
                p.add("    if state.n % 3 == 1:\n        sums = state.once(evaluate, state.n)")
                body += "if state.n % 3 == 1:\n    run.history.append(sums)\n"
            elif self.evaluates:
                body += "if state.n % 3 == 1:\n    run.history.append(evaluate(state.n))\n"
                body += "    model.train()\n"
            p.add("    with state.step():\n" + indent(body, " " * 8))
        elif self.loop == "steps":
            p.add(f"for x, y in state.steps(loader, epochs={self.epochs}):")
            p.add(indent(body, " " * 4))
        else:
            p.add(f"for epoch in state.epochs({self.epochs}):\n    at('top', epoch)")
            if "mean" in self.tracks:
                p.add("    run.mean = [0.0, 0]")
            p.add("    for x, y in state.steps(loader):\n" + indent(body, " " * 8))
            if self.loop == "two":
                tune = (
                    "at('begin', state.n + 1)\noptimizer.zero_grad()\n"
                    "F.cross_entropy(model(x), y).backward()\n"
                )
                if self.wrap == "by hand":
                    tune += "for q in trained:\n    dist.all_reduce(q.grad)\n"
                tune += "optimizer.step()\noptimizer.zero_grad()\nat('end', state.n + 1)\n"
                p.add("    at('middle', epoch)")
                p.add("    for x, y in state.steps(tuned):\n" + indent(tune, " " * 8))
            p.add(indent(self._between(), " " * 4))
        if self.evaluates and p.chance(0.4):
            p.add("last = state.once(evaluate, 99)")
            p.ends.append("last")

    def end(self) -> None:
        p = self.parts
        p.add("at('done', 0)\nparts = {")
        p.lines += [f"    {end!r}: digest({end})," for end in p.ends]
        p.add("}\nwith open(f'{FOLDER}/result-{rank}', 'w') as file:\n    json.dump(parts, file)")
        p.add("dist.barrier()\ndist.destroy_process_group()")

    def places(self) -> list[str]:
        """Return the places of an epoch at which the program can be killed."""
        if not self.has_epochs:
            return ["exchange"] if self.evaluates else []
        found = ["top", "between", "after"]
        found += ["middle"] if self.loop == "two" else []
        return found + ["exchange"] * self.evaluates + ["save"] * self.saves


def program(seed: int, breaks: str = "") -> Program:
    """Return the program of a seed. `breaks`: a key of BREAKS, how the program breaks the rule."""
    made = Drawing(seed)
    made.setup()
    made.loops()
    made.end()
    text = f"{HEAD}\n\ndef main():\n" + indent("\n".join(made.parts.lines), "    ")
    text += "\n\n\nif __name__ == '__main__':\n    main()\n"
    if breaks:
        text = _broken(text, *BREAKS[breaks])
    return Program(text, made.ranks, made.epochs * made.count, made.epochs, made.places())


# How a program breaks the rule: lines before its loop, and lines in each step. Each way changes the
# parameters, what is printed, or both.
_RATE = "for group in optimizer.param_groups:\n    group['lr'] = 0.01 / (1 + {})"
BREAKS = {
    "local": ("seen = 0", "seen += 1\n" + _RATE.format("seen")),
    "closure": (
        "seen = 0\ndef count():\n    nonlocal seen\n    seen += 1",
        "count()\n" + _RATE.format("seen"),
    ),
    "global": ("global SEEN", "SEEN += 1\n" + _RATE.format("SEEN")),
    "class attribute": (
        "",
        "Meter.total += loss.item()\nprint('total', Meter.total, flush=True)",
    ),
    "object": ("lost = Meter()", "lost.update(loss.item())\nprint('sum', lost.sum, flush=True)"),
    "array": ("lost = np.zeros(10000)", "lost[state.n] += 1\n" + _RATE.format("lost.sum()")),
    "list": ("lost = [0] * 1000", "lost[state.n] += 1\n" + _RATE.format("sum(lost)")),
    "many": (
        "lost = {i: Meter() for i in range(500)}",
        "lost[state.n].update(1.0)\n" + _RATE.format("sum(m.sum for m in lost.values())"),
    ),
    "generator": (
        "lost = random.Random(3)",
        "with torch.no_grad():\n    trained[0].mul_(1 - 0.001 * lost.random())",
    ),
    "attribute": ("model.seen = 0", "model.seen += 1\n" + _RATE.format("model.seen")),
}


def _broken(text: str, before: str, step: str) -> str:
    """Insert lines before the loop, and at the end of each step."""
    lines, done = [], False
    for line in text.splitlines():
        space = line[: len(line) - len(line.lstrip())]
        if not done and "state = hf.State(" in line:
            lines += indent(before, space).splitlines()
            done = True
        if "at('end', state.n + 1)" in line:
            lines += indent(step, space).splitlines()
        lines.append(line)
    return "\n".join(lines) + "\n"
