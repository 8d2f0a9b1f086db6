"""Counts the jobs that wait for an engine at this moment, and the replies of engines so far.

It knows nothing of HTTP.
"""

import threading
from collections import Counter
from dataclasses import dataclass, replace

from rollq_worker.protocols import Generated


@dataclass(slots=True)
class Replies:
    """Replies of engines so far."""

    by_finish: Counter[str]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were in a prefix cache."""
    sampled_tokens: int = 0


class Traffic:
    """The requests of one process, for all threads."""

    def __init__(self) -> None:
        self.asking: Counter[str] = Counter()
        """Jobs with their number of requests; an agent program may have several."""
        self.answered = 0
        """Number of waits that have ended so far."""
        self._replies = Replies(Counter())
        self._lock = threading.Lock()

    def begin(self, key: str) -> None:
        """Counts that job as waiting for a reply, until `end`."""
        with self._lock:
            self.asking[key] += 1

    def end(self, key: str, prompt: int, got: Generated | None) -> None:
        """Counts the job's reply to a prompt of that many tokens, if it got one."""
        with self._lock:
            self.answered += 1
            self.asking[key] -= 1
            if not self.asking[key]:
                del self.asking[key]
            if got is not None:
                replies = self._replies
                replies.by_finish[got.finish] += 1
                replies.prompt_tokens += prompt
                replies.cached_tokens += got.cached_tokens
                replies.sampled_tokens += len(got.ids)

    def replies(self) -> Replies:
        """A copy of the counts."""
        with self._lock:
            return replace(self._replies, by_finish=self._replies.by_finish.copy())
