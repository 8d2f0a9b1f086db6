"""Commands of the policy in a sandbox: tools that run them, and the sandbox itself, for rewards that run answers."""

from rollq_integrations.sandbox.box import PYTHON, Limits, Result, Sandbox
from rollq_integrations.sandbox.tools import commands

__all__ = ["PYTHON", "Limits", "Result", "Sandbox", "commands"]
