"""TRL: the rollout function of its GRPOTrainer. `async_grpo` has the rollout worker of its AsyncGRPOTrainer."""

from rollq_integrations.trl.grpo import RolloutFunc, rollq_reward, task_prompts

__all__ = ["RolloutFunc", "rollq_reward", "task_prompts"]
