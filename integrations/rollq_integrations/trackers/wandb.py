"""Weights & Biases. WANDB_MODE, WANDB_BASE_URL, WANDB_ENTITY, WANDB_DIR and its other variables are
its own.
"""

from rollq import StepMetrics
from rollq.pip_extras import needs

with needs("wandb"):
    import wandb

SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
"""W&B collects nothing of the program and the machine."""


class WandbTracker:
    """A run of its own, beside one that the trainer may have."""

    def __init__(self, project: str, rollouts: int, run: str) -> None:
        self.rollouts = rollouts
        self._run = wandb.init(
            project=project,
            id=run,
            name=run,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**SETTINGS),
        )
        self._run.define_metric("rollq/*", step_metric="rollq/step")

    def log(self, metrics: StepMetrics) -> None:
        row = {"rollq/step": metrics.step, **metrics.numbers}
        if metrics.rollouts:
            columns = list(metrics.rollouts[0])
            row["rollq/rollouts"] = wandb.Table(
                columns, [list(rollout.values()) for rollout in metrics.rollouts]
            )
        self._run.log(row)

    def close(self) -> None:
        self._run.finish()
