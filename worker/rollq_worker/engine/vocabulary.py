"""Which token ids an engine is sent: one that its model does not have kills a real server, and all in flight there.

A model has some more ids than its tokenizer has tokens, because its matrices are padded to a round size (Qwen2.5: 271
or 399 more), and now and then a policy samples one. What it sampled it also takes. It knows nothing of requests.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import threading
from array import array
from collections.abc import Sequence

PADDING = 2048
"""More ids than any model adds to its tokenizer's: what lies beyond is garbage, whoever says that it was sampled."""
ANY = 1 << 32


class Vocabulary:
    """The ids of one engine, for all threads. `size` is the tokenizer's; None: nothing is known."""

    def __init__(self, size: int | None) -> None:
        self.end = ANY if size is None else size + PADDING
        """No id of the model is as high."""
        self._known = ANY if size is None else size
        self._lock = threading.Lock()

    def admit(self, ids: Sequence[int]) -> None:
        """The model sampled these, so it has them and all below them; those that no model has are not taken over."""
        highest = max((id for id in ids if id < self.end), default=0)
        if highest >= self._known:
            with self._lock:
                self._known = max(self._known, highest + 1)

    def stranger(self, ids: array[int]) -> int | None:
        """An id among these that must not be sent, if there is one."""
        highest = max(ids, default=0)
        return highest if highest >= self._known else None
