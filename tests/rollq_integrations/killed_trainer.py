"""A trainer that is killed in the middle of its fourth step. Its last checkpoint is that of step 2.

python -m tests.rollq_integrations.killed_trainer REDIS_URL FOLDER
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from rollq import Client, Job
from rollq_integrations.trl import RolloutFunc
from tests.rollq_integrations.tiny import trainer


class Kill(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Client(sys.argv[1], run="r") as client:
        training = trainer(RolloutFunc(client, job=Job(env="shop", task=0)), Path(sys.argv[2]))
        training.add_callback(Kill())
        training.train()
