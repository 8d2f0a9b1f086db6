"""The ids into which a tokenizer would encode what was sampled.

Training on re-encoded text would get these. They are only counted, never sent or trained. It does not know episodes.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array

from rollq_worker.tokens.injection_guard import ControlTokens
from rollq_worker.tokens.tokenizer import Tokenizer


class Respelling:
    """Decodes and encodes again. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._controls = ControlTokens(tokenizer)

    def __call__(self, ids: array[int]) -> array[int]:
        """array('I'). Raises JobFailure for a vocabulary that spells a control token as plain text."""
        return self._controls.encode(self._tokenizer.decode(ids), str)
