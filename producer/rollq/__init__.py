"""Durable, token-exact rollouts of multi-turn tool-use agents, as a task queue."""

__version__ = "0.1.0"
