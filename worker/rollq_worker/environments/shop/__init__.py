"""The shop: a small retail environment that needs nothing but rollq. Deterministic, generated from fixed seeds.

catalogue, records   what there is: frozen records, the same in every process
database             an episode's view of them
tools, results       what the agent can do, and what it is shown
rules                what the agent may do: the system prompt
intents, tasks       what customers want, as instruction, script and ground truth
desk                 `shop:desk`: short tasks for small models
domain               the backend of customer_service, and the entry point
"""

from rollq_worker.environments.shop.domain import load

__all__ = ["load"]
