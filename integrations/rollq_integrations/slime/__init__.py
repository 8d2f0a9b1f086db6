"""slime: finished groups as its rollout function, its data source and its evaluation.

    --rollout-function-path rollq_integrations.slime.generate_rollout
    --data-source-path rollq_integrations.slime.DataSource
    --custom-reward-post-process-path rollq_integrations.slime.reward_post_process

slime's rollout n is batch n of a named consumer. slime's checkpoints acknowledge
(`DataSource.save`), so a trainer that restarts from checkpoint k gets the batches after k as they
were. Settings are attributes of slime's arguments, from the file of `--custom-config-path`;
docs/slime.md lists them. Read from slime 0.3.1.
"""

from rollq_integrations.slime.rollout import DataSource, generate_rollout
from rollq_integrations.slime.samples import reward_post_process

__all__ = ["DataSource", "generate_rollout", "reward_post_process"]
