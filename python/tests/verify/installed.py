"""Trains by a trainer that is installed as a package."""

import sys
from pathlib import Path

from common import KEPT, Task

import holdfast.torch as hf

sys.path.append(str(Path(__file__).parent / "site-packages"))
from tinytrainer import Trainer

task = Task()
state = hf.State(task.model, task.optimizer)
Trainer(task, state, state.vars(calls=0) if KEPT else None).fit()
