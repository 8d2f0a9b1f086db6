"""Sandboxes for commands of the policy, by bubblewrap or as containers, and tools that run commands
there.
"""

from rollq_integrations.sandbox.bubblewrap.box import PYTHON, Bubblewrap, Limits
from rollq_integrations.sandbox.containers.container import Container
from rollq_integrations.sandbox.containers.engine import image_of, pull
from rollq_integrations.sandbox.tools import as_told, commands

__all__ = ["PYTHON", "Bubblewrap", "Container", "Limits", "as_told", "commands", "image_of", "pull"]
