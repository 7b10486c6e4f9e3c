"""A thousand meters in a dictionary; kept, they are given to State by name."""

from typing import Any

from common import KEPT, Task, say

import holdfast.torch as hf


class Meter:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.sum += value
        self.count += 1


class Meters(dict[int, Meter]):
    def state_dict(self) -> dict[str, Any]:
        return {str(key): [meter.sum, meter.count] for key, meter in self.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, (total, count) in state.items():
            self[int(key)].sum, self[int(key)].count = total, count


task = Task()
meters = Meters((number, Meter()) for number in range(1000))
state = hf.State(task.model, task.optimizer, **({"meters": meters} if KEPT else {}))
for x, y in state.steps(task.loader):
    loss = task.learn(x, y)
    for label in y.tolist():
        meters[label].update(loss)
say("first", meters[0].count, f"{meters[0].sum:.4f}")
