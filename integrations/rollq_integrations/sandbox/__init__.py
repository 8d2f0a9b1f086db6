"""Sandboxes for commands of the policy, by bubblewrap, as containers, or by packages of others; and
tools that run commands there.
"""

from rollq_integrations.sandbox.bubblewrap.box import PYTHON, Bubblewrap, Limits
from rollq_integrations.sandbox.containers.container import Container
from rollq_integrations.sandbox.makers import MAKER, make_sandbox
from rollq_integrations.sandbox.tools import as_told, commands

__all__ = [
    "MAKER",
    "PYTHON",
    "Bubblewrap",
    "Container",
    "Limits",
    "as_told",
    "commands",
    "make_sandbox",
]
