"""TRL: the rollout function of its GRPOTrainer. `async_grpo` has the rollout worker of its
AsyncGRPOTrainer.
"""

from rollq_integrations.trl.checkpoints import last_checkpoint
from rollq_integrations.trl.grpo import RolloutFunc
from rollq_integrations.trl.rows import rollq_reward, task_prompts

__all__ = ["RolloutFunc", "last_checkpoint", "rollq_reward", "task_prompts"]
