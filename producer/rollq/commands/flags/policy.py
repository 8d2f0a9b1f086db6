"""Flags that name a policy: its training step, and the engines' name of its weights."""

import argparse

from rollq.client.policy_publication import LAST_STEP, LONGEST_NAME
from rollq.commands.flags.shared import whole

step = whole(0, LAST_STEP - 1)
"""An argument type: a training step."""


def weight_version(text: str) -> str:
    """An argument type: the name of a weight version."""
    if 0 < len(text) <= LONGEST_NAME:
        return text
    raise argparse.ArgumentTypeError(f"expected a name of 1 to {LONGEST_NAME} characters, not {text!r:.80}")
