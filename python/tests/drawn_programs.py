"""Draw training programs as PyTorch's users write them, each of parts that others have, too.

program(seed) gives the text of one: a model, how it is wrapped, an optimizer and its schedule,
where its data come from, what it carries from step to step, how its loop is written, what it does
between passes. It follows docs/pytorch.md in all. It ends with digests of everything in
`result-<rank>`, and is killed where its configuration says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from textwrap import indent

HEAD = '''
import contextlib, copy, hashlib, json, os, random, signal, sys
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
import holdfast.torch as hf

KILLS, FOLDER = json.loads(sys.argv[1])["kills"], sys.argv[2]


def at(place, n):
    """Be killed here, once for each line of KILLS that says so."""
    for i, line in enumerate(KILLS):
        if line == [dist.get_rank(), n, place]:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{FOLDER}/killed-{i}", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)


def digest(thing):
    found = hashlib.sha256()

    def visit(x):
        if isinstance(x, torch.Tensor):
            x = x.to_local() if hasattr(x, "to_local") else x
            found.update(f"{x.dtype} {tuple(x.shape)}".encode())
            found.update(x.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(x, dict):
            for key in sorted(x, key=str):
                found.update(str(key).encode())
                visit(x[key])
        elif isinstance(x, (list, tuple)):
            for y in x:
                visit(y)
        else:
            found.update(repr(x).encode())

    visit(thing)
    return found.hexdigest()


class Augmented(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i] * (0.9 + 0.2 * random.random()) + 0.01 * np.random.randn()
        return (x.flip(0) if torch.rand(()) < 0.5 else x), self.y[i]


class Stream:
    """Batches for ever; a pass ends after `count`, and the next one begins there."""

    def __init__(self, rank, x, y, count):
        self.rank, self.x, self.y, self.count, self.place = rank, x, y, count, 0

    def __iter__(self):
        while True:
            draw = torch.Generator().manual_seed(1000 * self.rank + self.place)
            i = torch.randint(len(self.x), (8,), generator=draw)
            self.place += 1
            yield self.x[i], self.y[i]
            if self.place % self.count == 0:
                return

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value):
        self.sum, self.count = self.sum + value, self.count + 1


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(80, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x.view(-1, 1, 4, 5))))
        return self.head(F.dropout(x.flatten(1), 0.1, self.training))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(5, 16, batch_first=True, num_layers=2, dropout=0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.gru(x.view(-1, 4, 5))[0][:, -1])


class Former(nn.Module):
    def __init__(self):
        super().__init__()
        self.take, self.place = nn.Linear(5, 16), nn.Parameter(torch.zeros(1, 4, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 5, bias=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.head(self.body(self.take(x.view(-1, 4, 5)) + self.place).mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(20, 20), nn.Linear(20, 20), nn.LayerNorm(20)
        self.b.weight = self.a.weight
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(20, 5))

    def forward(self, x):
        return self.head(self.norm(torch.tanh(self.b(torch.tanh(self.a(x))))))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(20, 24), nn.ReLU()).requires_grad_(False)
        self.norm, self.head = nn.BatchNorm1d(24, momentum=0.05), nn.Linear(24, 5)

    def forward(self, x):
        return self.head(self.norm(self.base(x)))


def Plain():
    layers = nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5)
    return nn.Sequential(*layers)
'''

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
PER_PASS = [
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
    """What was drawn. `steps` and `passes`: where a kill can be; `between`: it has such places."""

    text: str
    ranks: int
    steps: int
    passes: int
    between: bool
    exchanges: bool


@dataclass
class Parts:
    """Of a program under way of being written."""

    draw: random.Random
    kept: list[str] = field(default_factory=list)  # Arguments of State.
    ends: list[str] = field(default_factory=list)  # What is digested.
    lines: list[str] = field(default_factory=list)

    def chance(self, p: float) -> bool:
        return self.draw.random() < p

    def add(self, text: str) -> None:
        self.lines.append(text)

    def keep(self, name: str, made: str, end: str = "") -> None:
        """Have a thing that is kept by its name."""
        self.add(f"{name} = {made}")
        self.kept.append(f"{name}={name}")
        self.ends.append(end or name)


class Drawing:
    """One program's choices, in the order in which they depend on each other."""

    def __init__(self, seed: int) -> None:
        self.parts = Parts(random.Random(f"program {seed}"))
        draw, chance = self.parts.draw, self.parts.chance
        self.ranks = draw.choice([1, 2, 2, 2, 3])
        self.wrap = draw.choice(["ddp", "ddp", "ddp", "ddp", "fsdp", "by hand"])
        self.loop = draw.choice(["epochs", "in for", "numbered", "own", "own"])
        models = ["Plain", "Conv", "Former"]
        self.model = draw.choice(
            models if self.wrap == "fsdp" else [*models, "Recurrent", "Tied", "Frozen"]
        )
        self.passes, self.batches = draw.choice([2, 3]), draw.choice([4, 6])
        self.micro = draw.choice([1, 1, 1, 2, 3])  # Batches of an update.
        self.scaler = chance(0.2) and self.wrap != "fsdp"
        passes_show = self.loop in ("in for", "numbered")
        self.schedule = draw.choice(
            ["", "step", "step", *(["pass", "loss"] if passes_show else [])]
        )
        self.evaluates = passes_show and chance(0.6)
        self.saves = passes_show and self.wrap != "fsdp" and chance(0.3)
        self.stops = self.evaluates and chance(0.4)
        self.average = draw.choice(["", "", "swa", "copy"]) if self.wrap != "fsdp" else ""
        self.tracks, self.two = chance(0.5), self.wrap == "ddp" and chance(0.15)
        # What the body leaves in variables that State is not given; not to change other choices.
        carried = random.Random(f"carried {seed}")
        self.carried = carried.choice(["", "sum", "meter", "list", "memory"])
        self.clips, self.core = chance(0.4), "model.module" if self.wrap == "ddp" else "model"

    @property
    def count(self) -> int:
        """Batches of a rank in a pass over data."""
        return self.batches * (1 if self.loop == "own" else self.micro)

    def setup(self) -> None:
        p, draw = self.parts, self.parts.draw
        p.add("hf.init()\ntorch.manual_seed(7)\ndrawn = torch.Generator().manual_seed(3)")
        p.add(f"X = torch.randn({8 * self.ranks * self.count}, 20, generator=drawn)")
        p.add("Y = (X[:, :5] + 0.3 * torch.randn(len(X), 5, generator=drawn)).argmax(1)")
        if p.chance(0.3):  # What is exchanged before State.
            p.add("share = torch.tensor([dist.get_rank() + 1.0])\ndist.all_reduce(share)")
            p.add("X = X / share.item()\nnames = [None] * dist.get_world_size()")
            p.add("dist.all_gather_object(names, f'rank {dist.get_rank()}')\ndist.barrier()")
            p.ends.append("names")
        p.add(f"model = {self.model}()")
        if self.saves:
            p.add("start = 0\nif os.path.exists(f'{FOLDER}/snapshot.pt'):")
            p.add("    snapshot = torch.load(f'{FOLDER}/snapshot.pt')")
            p.add("    model.load_state_dict(snapshot['model'])\n    start = snapshot['epoch']")
        if self.wrap == "ddp":
            options = DDP_OPTIONS[:-1] if self.micro > 1 else DDP_OPTIONS
            p.add(f"model = DDP(model{draw.choice(options)})")
        elif self.wrap == "fsdp":
            p.add("for part in model.children():\n    if list(part.parameters()):")
            p.add("        fully_shard(part)\nfully_shard(model)")
        self._optimizer()
        if self.tracks:
            p.keep("track", "{'losses': [], 'sum': 0.0, 'best': 1e9}")
        self._data()
        p.add(f"state = hf.State(model, optimizer, {', '.join(p.kept)})")
        p.ends += ["model.state_dict()", "optimizer.state_dict()", "state.n"]

    def _optimizer(self) -> None:
        p, draw = self.parts, self.parts.draw
        p.add("trained = [q for q in model.parameters() if q.requires_grad]")
        who = "trained"
        if p.chance(0.3):
            p.add("matrices = [q for q in trained if q.dim() > 1]")
            p.add("others = [q for q in trained if q.dim() <= 1]")
            who = "[{'params': matrices, 'weight_decay': 0.01}, {'params': others}]"
        sharded = self.wrap == "fsdp"  # Not all work on DTensors.
        usable = [o for o in OPTIMIZERS if not sharded or ("fused" not in o and "Rprop" not in o)]
        p.add(f"optimizer = torch.optim.{draw.choice(usable).format(who)}")
        if self.two:
            p.keep("critic", "DDP(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)))",
                   "critic.state_dict()")  # fmt: skip
            p.keep("second", "torch.optim.Adam(critic.parameters())", "second.state_dict()")
        if self.schedule:
            among = {"step": PER_STEP, "pass": PER_PASS, "loss": [PLATEAU]}[self.schedule]
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
            self.source = draw.choice(["draw", "generator", "cursor"])
            if self.source == "generator":
                p.keep("gen", "torch.Generator().manual_seed(11)", "gen.get_state()")
            elif self.source == "cursor":
                p.keep("cursor", "{'at': 0}")
            return
        self.source = draw.choice(["tensors", "augmented", "workers", "stream"])
        if self.source == "stream":
            p.add(f"loader = Stream(dist.get_rank(), X, Y, {self.count})")
            return
        p.add(f"data = {'Augmented' if self.source == 'augmented' else 'TensorDataset'}(X, Y)")
        p.add(f"sampler = DistributedSampler(data, shuffle={p.chance(0.7)})")
        workers = {"tensors": 0, "augmented": draw.choice([0, 2]), "workers": 2}[self.source]
        p.add(f"loader = DataLoader(data, 8, sampler=sampler, num_workers={workers})")

    def _batch(self) -> str:
        i = {
            "draw": "torch.randint(len(X), (8,))",
            "generator": "torch.randint(len(X), (8,), generator=gen)",
            "cursor": "(torch.arange(8) + 8 * (cursor['at'] * size + rank)) % len(X)",
        }[self.source]
        more = "cursor['at'] += 1\n" if self.source == "cursor" else ""
        return f"i = {i}\n{more}x, y = X[i], Y[i]\n"

    def _gradients(self, ends: str) -> str:
        """Forward and backward pass of a batch; `ends`: whether it is an update's last."""
        p = self.parts
        text = ""
        if p.chance(0.3):
            text += "x = x + 0.01 * torch.randn_like(x)\n"
        if p.chance(0.3):
            text += "x = x * (1 + 0.01 * random.random() + 0.01 * np.random.rand())\n"
        amp = "with torch.autocast('cpu', torch.bfloat16):\n    " if p.chance(0.25) else ""
        text += f"{amp}out = model(x).float()\n"
        if self.carried == "memory":
            text += "out = out + 0.1 * memory\nmemory = out.detach().mean(0)\n"
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
        if self.tracks:
            text += "track['losses'].append(loss.item())\ntrack['sum'] += loss.item()\n"
            text += "track['best'] = min(track['best'], loss.item())\n"
        text += {
            "sum": "running, count = running + loss.item(), count + 1\n",
            "meter": "meter.update(loss.item())\n",
            "list": "losses.append(loss.item())\n",
        }.get(self.carried, "")
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
        text = begin + text + update + self._end_of_step()
        if self.loop != "own" and p.chance(0.35):
            when = max(2, int(self.passes * self.count * p.draw.choice([0.3, 0.6, 0.9])))
            text += f"if state.n + 1 >= {when}:\n    break\n"
        return text

    def _between(self) -> str:
        p = self.parts
        text = "at('between', epoch)\n"
        mean = {
            "sum": "running / max(1, count)",
            "meter": "meter.sum / max(1, meter.count)",
            "list": "sum(losses) / max(1, len(losses))",
        }.get(self.carried, "1.0")
        if self.loop == "in for":  # One that begins at state.epoch has not gone through all.
            text += f"history.append({mean})\n"
        if self.evaluates:
            text += (
                "model.eval()\nwith torch.no_grad():\n"
                "    seen, known = X[rank::size], Y[rank::size]\n"
                "    out = model(seen)\n    loss = F.cross_entropy(out, known, reduction='sum')\n"
                "    sums = torch.stack([loss, (out.argmax(1) == known).sum()])\n"
                "model.train()\nat('exchange', epoch)\ndist.all_reduce(sums)\n"
            )
            if p.chance(0.4):
                text += "hits = [None] * size\ndist.all_gather_object(hits, {'rank': rank})\n"
        text += "scheduler.step()\n" if self.schedule == "pass" else ""
        if self.schedule == "loss":
            text += f"scheduler.step({'sums[0].item()' if self.evaluates else mean})\n"
        if self.saves:
            text += (
                "if rank == 0:\n"
                f"    snapshot = {{'model': {self.core}.state_dict(), 'epoch': epoch + 1}}\n"
                "    torch.save(snapshot, f'{FOLDER}/snapshot.new')\n"
                "    os.replace(f'{FOLDER}/snapshot.new', f'{FOLDER}/snapshot.pt')\n"
            )
        text += "at('after', epoch)\n"
        if self.stops:
            text += (
                "best, bad = (sums[0].item(), 0) if sums[0].item() < best else (best, bad + 1)\n"
                "stop = torch.tensor([float(bad >= 2)])\ndist.broadcast(stop, 0)\n"
                "if stop.item():\n    break\n"
            )
            p.ends.append("[best, bad]")
        return text

    def loops(self) -> None:
        p = self.parts
        body = self.body()
        begin = {
            "sum": "running, count = 0.0, 0",
            "meter": "meter = Meter()",
            "list": "losses = []",
            "memory": "memory = torch.zeros(5)",
        }.get(self.carried, "pass")
        ends = {"sum": ["running", "count"], "meter": ["vars(meter)"], "list": ["losses"]}
        p.ends += ["history", *ends.get(self.carried, [self.carried] if self.carried else [])]
        p.add(f"history = []\n{begin}")
        p.add("rank, size, best, bad = dist.get_rank(), dist.get_world_size(), 1e9, 0")
        if self.loop == "own":
            p.add(f"while state.n < {self.passes * self.batches}:\n    with state.step():")
            p.add(indent(body, " " * 8))
        elif self.loop == "epochs":
            p.add(f"for x, y in state.steps(loader, epochs={self.passes}):")
            p.add(indent(body, " " * 4))
        else:
            numbered = self.loop == "numbered"
            first = "state.epoch if state.n else start" if self.saves else "state.epoch"
            p.add(f"for epoch in range({f'{first}, ' if numbered else ''}{self.passes}):")
            p.add("    model.train()" if p.chance(0.5) else "    pass")
            p.add(indent("pass" if self.carried == "memory" else begin, "    "))
            p.add(f"    for x, y in state.steps(loader{', epoch=epoch' if numbered else ''}):")
            p.add(indent(body, " " * 8))
            p.add(indent(self._between(), " " * 4))

    def end(self) -> None:
        p = self.parts
        p.add("at('done', 0)\nparts = {")
        p.lines += [f"    {end!r}: digest({end})," for end in p.ends]
        p.add("}\nwith open(f'{FOLDER}/result-{rank}', 'w') as file:\n    json.dump(parts, file)")
        p.add("dist.barrier()\ndist.destroy_process_group()")


def program(seed: int) -> Program:
    """Return the program of a seed."""
    made = Drawing(seed)
    made.setup()
    made.loops()
    made.end()
    text = f"{HEAD}\n\ndef main():\n" + indent("\n".join(made.parts.lines), "    ")
    return Program(
        text + "\n\n\nif __name__ == '__main__':\n    main()\n",
        made.ranks,
        made.passes * made.count,
        made.passes,
        made.loop in ("in for", "numbered"),
        made.evaluates,
    )
