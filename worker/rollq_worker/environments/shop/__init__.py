"""The shop: a small retail environment that needs nothing but rollq. Deterministic, generated from
fixed seeds.

records   what there is before an episode
tools     what the agent can do
rules     what the agent may do: the system prompt
tasks     what customers want, as instruction, script and ground truth
desk      `shop:desk`: short tasks for small models
domain    the backend of customer_service, and the entry point
"""

from rollq_worker.environments.shop.domain import load

__all__ = ["load"]
