"""The shop: a small retail environment that needs nothing but rollq. Deterministic, generated from fixed seeds.

catalogue, world    what there is: frozen records, the same in every process
database            an episode's layer over them
tools, policy       what the agent can and may do
wishes, tasks       what customers want, as instruction, script and ground truth
environment, domain the protocols
"""

from rollq_worker.environments.shop.domain import ShopDomain, load

__all__ = ["ShopDomain", "load"]
