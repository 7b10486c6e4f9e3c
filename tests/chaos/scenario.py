"""The scenarios of the chaos trials: world size, optimizer, model, spares, which processes are killed and when.

Faults, world sizes and optimizers are taken in turn, so that every combination comes. Every world size and
optimizer comes within the dozen trials of ./test. The rest is drawn.
"""

OPTIMIZERS = ["sgd", "momentum", "adam", "adamw"]
WORKERS = [1, 4, 2, 4]
SEED = 3
STEPS = [60, 90]  # Few, so that trials share their undisturbed runs.
SOON = "soon"  # First in a wave: kill not at a step, but during the recovery from the wave before.

# Name → waves of victims, drawn from a Random for a world size.
FAULTS = {
    "one": lambda r, n: [[r.randrange(n)]],
    "rank 0": lambda r, n: [[0]],
    "two at once": lambda r, n: [r.sample(range(n), 2)],
    "all at once": lambda r, n: [list(range(n))],
    "one more during the recovery": lambda r, n: [[r.randrange(n)], [SOON, r.randrange(n)]],
    "the scheduler": lambda r, n: [["scheduler"]],
    "the scheduler and a worker": lambda r, n: [["scheduler", r.randrange(n)]],
    "the scheduler in mid-recovery": lambda r, n: [[r.randrange(n)], [SOON, "scheduler"]],
    "the same rank twice": lambda r, n: [[k := r.randrange(n)], [k]],
}
SEVERAL = {"two at once", "all at once"}  # Only for several workers.


def draw(rng, number):
    """Scenario `number` of a series."""
    fault = list(FAULTS)[number % len(FAULTS)]
    workers = WORKERS[number % len(WORKERS)]
    if workers == 1 and fault in SEVERAL:
        workers = 4
    turn = number + number // len(WORKERS)  # Otherwise each optimizer would have only one world size.
    return {
        "workers": workers, "fault": fault, "optimizer": OPTIMIZERS[turn % len(OPTIMIZERS)],
        "rich": rng.random() < 0.5,  # dropout and batch norm in the model
        "spares": rng.choice([0, 0, 1, 2]), "batch": 16, "steps": rng.choice(STEPS),
        "waves": FAULTS[fault](rng, workers), "clip": rng.choice([0, 0.5]),
    }


def program(arguments, scenario, save):
    """The command of the training."""
    command = [arguments.bin / "mnist", "--data", arguments.data, "--epochs", 1000, "--steps", scenario["steps"],
               "--batch", scenario["batch"], "--seed", SEED, "--optimizer", scenario["optimizer"], "--model", "mlp",
               "--save", save]
    if scenario["clip"]:
        command += ["--clip", scenario["clip"]]
    if scenario["rich"]:
        command += ["--dropout", 0.2, "--batch-norm"]
    return command


def settings(scenario):
    """The values that must be the same in two runs for equal bits."""
    return tuple(scenario[k] for k in ("workers", "optimizer", "rich", "batch", "steps", "clip"))
