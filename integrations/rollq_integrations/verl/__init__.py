"""verl: an agent loop that has its episodes played by rollq's workers."""

from rollq_integrations.verl.agent_loop import RollqAgentLoop

__all__ = ["RollqAgentLoop"]
