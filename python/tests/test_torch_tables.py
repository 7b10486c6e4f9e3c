"""Tables of parameter servers: the same bits whatever dies, torch's numbers, and errors by name."""
# With --ci: jobs with parameter servers, and kills of all their kinds of processes.

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch_job import LIMIT_S, needs_torch
from torch_servers import BEGINNING, Kills, Results, start
from torch_servers import trained as train

pytestmark = needs_torch
numpy = pytest.importorskip("numpy")
DTYPES = {"I64": "<i8", "F32": "<f4", "BF16": "<u2"}  # Of safetensors; numpy has no bfloat16.

# Two tables, one of which grows, and a dense layer behind DDP.
TRAINING = (
    BEGINNING
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users = hf.Embedding(
            None, 8, optimizer="adam", lr=0.01, initial=("uniform", -0.1, 0.1)
        )
        self.items = hf.Embedding(300, 4, lr=0.05, seed=3, dtype=torch.bfloat16, name="items")
        self.top = torch.nn.Linear(12, 1)

    def forward(self, u, i):
        return self.top(torch.cat([self.users(u), self.items(i)], 1)).squeeze(1)


net = Net()
model = DDP(net)
if config.get("load"):
    hf.load_tables(config["load"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
state = hf.State(model, optimizer)
losses = state.vars(all=[])


def step():
    n = state.n
    net.users.lr *= 0.97
    if config.get("evict") and n % 5 == 4:
        net.users.evict(unused_for=3)
    draw = torch.Generator().manual_seed(10 * n + rank)
    u = torch.randint(0, 40 * (n + 1), (32,), generator=draw) * 1000003
    i = torch.randint(0, 300, (32,), generator=draw)
    at("begin")
    guessed = model(u, i)
    at("forward")
    loss = ((guessed - ((u * 7 + i) % 3).float()) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.all.append(loss.item())
    at("update")


def evaluate():
    at("once")
    with torch.no_grad():
        return float(model(torch.arange(300) * 1000003, torch.arange(300)).sum())


def save():
    at("save")
    hf.save_tables(config["save"])
    at("saved")


while state.n < config["steps"]:
    if state.n == 10 and config.get("save"):
        state.once(save)
    if state.n % 6 == 0:
        state.once(evaluate)
    with state.step():
        note_place()
        step()
    at("between")
score = state.once(evaluate)
if config.get("save"):
    state.once(save)
with torch.no_grad():
    rows = net.users(torch.arange(40 * 24) * 1000003), net.items(torch.arange(300))
parts = [part.detach().numpy().tobytes() for part in (*rows, *net.top.parameters())]
result = {
    "n": state.n,
    "losses": losses.all,
    "score": score,
    "bits": [hashlib.sha256(part).hexdigest() for part in parts],
    "moved": int((rows[0].abs() > 0.1).sum()),
    "item 7": rows[1][7].tolist(),
}
with open(f"{folder}/result-{rank}", "w") as file:
    json.dump(result, file)
"""
)
STEPS = 24


def trained(
    folder: Path, servers: int, kills: Kills = (), killer: int = 0, more: Any = None, **options: Any
) -> Results:
    """Train with servers and kills; return what the ranks leave."""
    more = {"steps": STEPS, **(more or {})}
    return train(TRAINING, folder, servers, kills, killer, more, **options)


@pytest.fixture(scope="module", name="calm")
def calm_once(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of two workers and one server that nobody kills."""
    results = trained(tmp_path_factory.mktemp("calm") / "job", 1)
    assert results[0]["bits"] == results[1]["bits"]
    assert results[0]["moved"]  # Rows have left the interval in which they begin.
    return results


@pytest.mark.parametrize("servers", [2, 3])
def test_torch_tables_have_the_same_bits_with_any_number_of_servers(
    tmp_path: Path, calm: Results, servers: int
) -> None:
    assert trained(tmp_path / "job", servers) == calm


@pytest.mark.kill
@pytest.mark.parametrize("spares", [0, 1])
def test_torch_tables_survive_workers_and_servers(
    tmp_path: Path, calm: Results, spares: int
) -> None:
    kills = [
        (2, "begin", ["server"]),
        (5, "forward", ["servers"]),
        (6, "once", ["worker"]),
        (8, "update", ["worker"]),
        (11, "update", ["server", "worker"]),
        (12, "once", ["server"]),
        (15, "between", ["server"]),
        (19, "between", ["servers", "worker"]),
    ]
    assert trained(tmp_path / "job", 2, kills, killer=spares, spares=spares) == calm


@pytest.mark.kill
def test_torch_tables_are_saved_and_loaded_by_any_number_of_servers(
    tmp_path: Path, calm: Results
) -> None:
    saved = tmp_path / "saved" / "rows"
    kills = [(10, "save", ["server"]), (10, "saved", ["worker"]), (14, "begin", ["servers"])]
    assert trained(tmp_path / "job", 2, kills, more={"save": str(saved)}) == calm
    manifest = json.loads((saved / "tables.json").read_text())
    names = [name for table in manifest["tables"] for name in table["files"]]
    assert len(names) == 4 and all((saved / name).is_file() for name in names)
    assert sorted(names) == sorted(path.name for path in saved.glob("*.safetensors*"))
    for servers in (1, 3):
        kills = [(0, "once", ["server"])]
        more = {"load": str(saved), "steps": 0}
        later = trained(tmp_path / f"later{servers}", servers, kills, more=more)
        assert later[0]["bits"][:2] == calm[0]["bits"][:2], servers
    more = {"load": str(saved.parent)}
    job = start(tmp_path / "wrong", TRAINING, {"steps": 2, **more}, 1, "--max-restarts", "0")
    try:
        output, _ = job.process.communicate(timeout=LIMIT_S)
    finally:
        job.stop()
    assert job.process.returncode != 0
    assert f"there are no saved tables in {saved.parent}" in output


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors of a safetensors file and its metadata, by the format's description."""
    text = path.read_bytes()
    begin = 8 + int.from_bytes(text[:8], "little")
    header, found = json.loads(text[8:begin]), {}
    metadata = header.pop("__metadata__", {})
    for name, about in header.items():
        first, last = about["data_offsets"]
        data = numpy.frombuffer(text[begin + first : begin + last], DTYPES[about["dtype"]])
        found[name] = data.reshape(about["shape"]).copy()
    return found, metadata


def write_tensors(
    path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file, as safetensors.torch.save_file does."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, tensor in tensors.items():
        part = tensor.tobytes()
        dtype = next(key for key, value in DTYPES.items() if value == tensor.dtype.str)
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_torch_tables_are_exported_changed_and_imported(tmp_path: Path, calm: Results) -> None:
    saved, rows = tmp_path / "saved", tmp_path / "rows.safetensors"
    trained(tmp_path / "job", 2, more={"save": str(saved)})

    def table(*words: object) -> str:
        command = [sys.executable, "-m", "holdfast", "table", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for name, moments in (("embedding1", 16), ("items", 4)):
        table("export", saved, rows, "--table", name, "--force")
        tensors, metadata = read_tensors(rows)
        if find_spec("safetensors"):
            from safetensors.torch import load_file

            theirs = load_file(rows)
            assert {key: list(value.shape) for key, value in theirs.items()} == {
                key: list(value.shape) for key, value in tensors.items()
            }
            assert (theirs["keys"].numpy() == tensors["keys"]).all()
        keys = tensors["keys"]
        assert (numpy.diff(keys) > 0).all() and tensors["state"].shape[1] == moments
        if name == "items":
            tensors["rows"][keys == 7] = [0x3F80, 0x4000, 0x4040, 0x4080]
            metadata = {}  # Adagrad has no count.
        write_tensors(rows, tensors, metadata)
        table("import", rows, saved, "--table", name)
    listed = json.loads(table("ls", saved, "--json", "--verify"))
    assert listed["step"] >= STEPS and listed["servers"] == 2  # Results of once() count, too.
    assert [one["updates"] for one in listed["tables"]] == [STEPS, 0]
    more = {"load": str(saved), "steps": 0}
    later = trained(tmp_path / "later", 3, more=more)
    assert later[0]["bits"][0] == calm[0]["bits"][0]
    assert later[0]["item 7"] == [1, 2, 3, 4] != calm[0]["item 7"]


@pytest.mark.kill
def test_torch_tables_evict_rows_with_the_same_bits(tmp_path: Path, calm: Results) -> None:
    undisturbed = trained(tmp_path / "calm", 1, more={"evict": True})
    assert 0 < undisturbed[0]["moved"] < calm[0]["moved"]
    kills = [
        (4, "forward", ["server"]),
        (9, "update", ["servers", "worker"]),
        (10, "begin", ["server"]),
        (14, "update", ["scheduler", "server"]),
        (19, "update", ["server"]),
    ]
    assert trained(tmp_path / "job", 2, kills, more={"evict": True}) == undisturbed


# Results of state.once are versions of the state, and no steps.
RECENT = """
import json, sys
import torch, holdfast.torch as hf
hf.init()
table = hf.Embedding(None, 2, optimizer="sgd", lr=0.5, initial=("constant", 1.0, 0))
state = hf.State(torch.nn.ModuleList([table]))
rows = lambda: table(torch.tensor([7, 100])).tolist()
while state.n < 12:
    with state.step():
        table(torch.tensor([7 if state.n == 1 else 100 + state.n])).sum().backward()
        if state.n == 11:
            table.evict(unused_for=11)
    for _ in range(3):
        state.once(int)
with torch.no_grad():
    json.dump(rows(), open(f"{sys.argv[2]}/result-0", "w"))
"""


def test_torch_tables_evict_by_steps(tmp_path: Path) -> None:
    job = start(tmp_path / "job", RECENT, {}, 1, ranks=1)
    try:
        assert job.end()[0] == [[0.5, 0.5], [1, 1]]
    finally:
        job.stop()


@pytest.mark.kill
def test_torch_tables_survive_the_scheduler(tmp_path: Path, calm: Results) -> None:
    kills = [
        (3, "forward", ["scheduler"]),
        (9, "update", ["scheduler", "servers"]),
        (15, "begin", ["scheduler", "server", "worker"]),
    ]
    assert trained(tmp_path / "job", 2, kills) == calm


@pytest.mark.kill
def test_torch_tables_survive_a_kill_from_outside_at_any_instant(
    tmp_path: Path, calm: Results
) -> None:
    job = start(tmp_path / "job", TRAINING, {"steps": STEPS, "wait": 0.02}, 2)
    try:
        for step, delay in ((3, 0.013), (8, 0.021), (13, 0.002), (18, 0.03)):
            until = time.monotonic() + LIMIT_S
            path = job.folder / "pid-0"
            while not path.exists() or int(path.read_text().split()[1]) < step:
                assert time.monotonic() < until and job.process.poll() is None, job.logs()
                time.sleep(0.002)
            time.sleep(delay)
            os.kill(job.server(), signal.SIGKILL)
        assert job.end() == calm
        assert job.recoveries()
    finally:
        job.stop()


# Pairs of a table and a torch.nn.Embedding that begin alike and see the same data. `some`: the
# steps touch some rows, of which torch must leave the others alone; else they touch all. State is
# given nothing, since it keeps no SparseAdam, and nobody is killed here.
COMPARISON = """
import json, sys
import torch, holdfast.torch as hf
from torch import optim
folder = sys.argv[2]
torch.set_num_threads(1)
hf.init()
torch.manual_seed(1)
ROWS, DIM = 60, 20
every = torch.arange(ROWS)
pairs = {}
def pair(name, some, optimizer, sparse=False, **options):
    table = hf.Embedding(ROWS, DIM, optimizer=name.partition(" ")[0], name=name, **options)
    theirs = torch.nn.Embedding(ROWS, DIM, sparse=sparse)
    pairs[name] = table, theirs, optimizer(theirs.parameters()), some
pair("sgd", True, lambda p: optim.SGD(p, 0.125), lr=0.125)
pair("sgd any", True, lambda p: optim.SGD(p, 0.1), lr=0.1)
pair("adagrad", True, lambda p: optim.Adagrad(p, 0.1, initial_accumulator_value=0.5), lr=0.1,
     initial_accumulator_value=0.5)
pair("sparse_adam", True, lambda p: optim.SparseAdam(p, 0.1, (0.8, 0.99)), sparse=True, lr=0.1,
     beta1=0.8, beta2=0.99)
pair("adam", False, lambda p: optim.Adam(p, 0.1, weight_decay=0.1), lr=0.1, weight_decay=0.1)
pair("adamw", False, lambda p: optim.AdamW(p, 0.1, weight_decay=0.1), lr=0.1, weight_decay=0.1)
pair("momentum", False, lambda p: optim.SGD(p, 0.1, 0.9), lr=0.1)
pair("momentum nesterov", False, lambda p: optim.SGD(p, 0.1, 0.8, nesterov=True), lr=0.1,
     momentum=0.8, nesterov=True)
tables = torch.nn.ModuleList(pair[0] for pair in pairs.values())
state = hf.State()
with torch.no_grad():
    first = {}
    for name, (table, theirs, _, _) in pairs.items():
        first[name] = table(every)
        theirs.weight.copy_(first[name])
    shapes = [list(tables[0](ids).shape) for ids in (
        torch.tensor(3), torch.zeros(2, 0, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int32)
    )]
while state.n < 12:
    with state.step():
        for table, theirs, optimizer, some in pairs.values():
            ids = torch.randint(0, ROWS, (4, 8))
            ids = ids if some else torch.cat([every, ids.flatten()])
            wanted = torch.randn(*ids.shape, DIM)
            optimizer.zero_grad()
            for rows in (table(ids), theirs(ids)):
                (10 * (rows - wanted).square().sum(-1).mean()).backward()
            optimizer.step()
with torch.no_grad():
    result = {"parameters": len(list(tables.parameters())), "shapes": shapes}
    for name, (table, theirs, _, _) in pairs.items():
        rows = table(every)
        result[name] = {
            "differs": (rows - theirs.weight).abs().max().item(),
            "moved": (rows - first[name]).abs().max().item(),
            "began": [first[name].mean().item(), first[name].std().item()],
        }
    plain = tables[0](every)
    compiled = torch.compile(torch.nn.Sequential(tables[0], torch.nn.ReLU()), backend="eager")
    result["compiled"] = torch.equal(compiled(every), plain.relu())
with open(f"{folder}/result-0", "w") as file:
    json.dump(result, file)
"""


def test_torch_tables_are_updated_as_torch_updates_an_embedding(tmp_path: Path) -> None:
    job = start(tmp_path / "job", COMPARISON, {}, 2, ranks=1)
    try:
        found = job.end()[0]
    finally:
        job.stop()
    assert found.pop("parameters") == 0
    assert found.pop("shapes") == [[20], [2, 0, 20], [1, 2, 20]]
    assert found.pop("compiled")
    assert len(found) == 8
    for name, pair in found.items():
        # With this rate torch's fused multiply-add rounds as a multiplication and an addition do.
        assert pair["differs"] <= (0 if name == "sgd" else 1e-6), (name, pair)
        assert pair["moved"] > 0.1, (name, pair)
        mean, deviation = pair["began"]
        assert abs(mean) < 0.1 and abs(deviation - 1) < 0.1, (name, pair)


# What a program may do wrong without others: each is refused, and the job goes on.
MISTAKES = """
import copy, json, sys
import torch, holdfast.torch as hf
torch.set_num_threads(1)
hf.init()
said = []
def refused(make):
    try:
        make()
    except hf.UserError as error:
        said.append(str(error))
    else:
        said.append("nothing")
refused(lambda: hf.Embedding(10, 4, optimizer="lion"))
refused(lambda: hf.Embedding(10, 4, optimizer="sgd", momentum=0.9))
refused(lambda: hf.Embedding(10, 4, eps=float("nan")))
refused(lambda: hf.Embedding(0, 4))
refused(lambda: hf.Embedding(10, 4, initial=("zipf", 0.0, 1.0)))
refused(lambda: hf.Embedding(10, 4, dtype=torch.float64))
table = hf.Embedding(10, 4)
any_id = hf.Embedding(None, 4)
refused(lambda: table(torch.tensor([1])))
refused(lambda: hf.State(table, torch.amp.GradScaler("cpu")))
refused(lambda: copy.deepcopy(table))
state = hf.State(torch.nn.ModuleList([table, any_id]))
refused(lambda: hf.Embedding(10, 4))
refused(lambda: table(torch.tensor([3, 10])))
refused(lambda: table(torch.tensor([3, -1])))
refused(lambda: any_id(torch.tensor([-7])))
refused(lambda: table(torch.tensor([1.0])))
refused(lambda: table.evict(3))
refused(lambda: table.evict(0))
with state.step():
    table(torch.tensor([1])).sum().backward()
json.dump([*said, any_id(torch.tensor([2**63 - 1])).shape], open(f"{sys.argv[2]}/result-0", "w"))
"""
SAID = [
    "there is no optimizer 'lion' for a table; there are 'sgd', ",
    "the optimizer 'sgd' of a table has no option 'momentum'; its options are none",
    "the option 'eps' of 'adagrad' is nan: a number is expected",
    "hf.Embedding(0, 4): allowed are None or a number of rows from 1",
    "initial=('zipf', 0.0, 1.0): allowed are ('normal', mean, deviation), ",
    "hf.Embedding keeps torch.float32 or torch.bfloat16, not torch.float64",
    "embedding1 was used before hf.State(...)",
    "a GradScaler scales the loss, and hf.Embedding would learn from the scaled gradients",
    "embedding1 is a table of the job's servers: it can not be copied",
    "hf.Embedding has to be made after hf.init() and before hf.State(...)",
    "embedding1 was asked for id 10; allowed is 0 to 9",
    "embedding1 was asked for id -1; allowed is 0 to 9",
    "embedding2 was asked for id -7; allowed is from 0 on",
    "embedding1 was asked for ids of torch.float32: whole numbers",
    "embedding1.evict() has to be called in a step",
    "embedding1 is to evict rows unused for 0 steps: at least 1 is expected",
]


def test_torch_tables_refuse_by_name_what_one_rank_can_see(tmp_path: Path) -> None:
    job = start(tmp_path / "job", MISTAKES, {}, 1, ranks=1)
    try:
        *found, shape = job.end()[0]
    finally:
        job.stop()
    assert shape == [1, 4] and len(found) == len(SAID)
    for text, beginning in zip(found, SAID):
        assert text.startswith(beginning), text


def test_torch_tables_need_servers(tmp_path: Path) -> None:
    text = "import holdfast.torch as hf; hf.init(); hf.Embedding(10, 4)"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 1
    assert "hf.Embedding needs parameter servers, and this job has none" in done.stderr
    assert "`holdfast run --servers 1 ...`" in done.stderr


# What ends the job. The last rank does something else than the others.
FAILING = """
import json, sys
import torch, torch.distributed as dist, holdfast.torch as hf
case = json.loads(sys.argv[1])
torch.set_num_threads(1)
hf.init()
odd = dist.get_rank() == dist.get_world_size() - 1
a = hf.Embedding(10, 8 if odd and case == "dim" else 4, name="first")
b = hf.Embedding(10, 4, name="second")
state = hf.State(torch.nn.ModuleList([a, b]))
ids = torch.tensor([2, 7])
with state.step():
    x, y = (b(ids), a(ids)) if odd and case == "order" else (a(ids), b(ids))
    if odd and case == "rate":
        a.lr = 0.5
    if case == "nan":
        x = x * torch.tensor([[1.0], [float("nan")]])
    (x + y).sum().backward()
"""


@pytest.mark.parametrize(
    ("case", "ranks", "words"),
    [
        (
            "dim",
            2,
            ["defines other tables", "table first has ", "all workers have to define the same"],
        ),
        (
            "rate",
            2,
            ["rank 1 has other learning rates or weight decays for the tables than rank 0"],
        ),
        ("order", 2, ["rank 0 pulls rows of table "]),
        ("nan", 1, ["rank 0 pushes a gradient to table first for key 7 that is no finite number"]),
    ],
)
def test_torch_tables_end_the_job_by_name(
    tmp_path: Path, case: str, ranks: int, words: list[str]
) -> None:
    job = start(tmp_path / "job", FAILING, case, 1, "--max-restarts", "0", ranks=ranks)
    try:
        output, _ = job.process.communicate(timeout=LIMIT_S)
    finally:
        job.stop()
    assert job.process.returncode != 0
    reason = output.rpartition("the job has failed: ")[2]
    assert all(word in reason for word in words), output
