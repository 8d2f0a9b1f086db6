"""A worker's renderers: one for each set of tools, each set of arguments for the template and each
need of a job.

Each is self-checked once, before its first use. The check holds up only the jobs that wait for it.
"""

import marshal
import threading
from collections.abc import Sequence

from rollq.job import History, Job, Json
from rollq_worker.agents.known_agents import is_program
from rollq_worker.context import asks_policy
from rollq_worker.episode.messages import key_of_schemas
from rollq_worker.episode.sampler import ends_anywhere
from rollq_worker.episode.strategies import agent_factory
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import checked_renderer
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.tokenizer import Tokenizer

MAX_RENDERERS = 64
"""Number of renderers that are kept, those used last. Environments may make up tools for every
task.
"""


_Key = tuple[bytes, bytes, tuple[Edge, ...], bool]


class _Slot:
    """The place of one renderer. Its lock is held while the self-check runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.renderer: ChatRenderer | None = None


class RendererCache:
    """All renderers for one tokenizer, shared by all threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._slots: dict[_Key, _Slot] = {}
        self._lock = threading.Lock()

    def get(
        self,
        job: Job,
        tools: Sequence[Json],
        *,
        several: bool = False,
        cut: bool = False,
    ) -> ChatRenderer:
        """The renderer for a job whose environment has these tools.

        `several`: a turn may have several results; `cut`: a turn may be cut. Raises JobFailure
        naming an edge that is needed and cannot be had, or an argument that the template does not
        read.
        """
        needed = list(needed_edges(job))
        if several:
            needed.append(Edge.CALLS)
        if cut:
            needed.append(Edge.TRUNCATED)
        edges = tuple(dict.fromkeys(needed))
        rerender = job.history is History.TEMPLATE
        if not is_program(job.agent) and agent_factory(job.agent, job.agent_args).text_actions:
            tools = ()  # they are in the system prompt, and the template shows none
        shown = key_of_schemas(tools), marshal.dumps(dict(job.template_kwargs), 2)
        slot = self._slot((*shown, edges, rerender))
        with slot.lock:
            if slot.renderer is None:
                tokenizer = self._tokenizer.with_arguments(job.template_kwargs)
                slot.renderer = checked_renderer(tokenizer, tools, *edges, rerender=rerender)
            return slot.renderer

    def _slot(self, key: _Key) -> _Slot:
        with self._lock:
            slot = self._slots.pop(key, None) or _Slot()
            self._slots[key] = slot  # moved to the end: the first one was used longest ago
            if len(self._slots) > MAX_RENDERERS:
                del self._slots[next(iter(self._slots))]
            return slot


def needed_edges(job: Job) -> tuple[Edge, ...]:
    """The edges that this job may take beyond those of every job."""
    edges = []
    if not is_program(job.agent) and agent_factory(job.agent, job.agent_args).several:
        edges.append(Edge.CALLS)
    if ends_anywhere(job) or job.sampling.get("stop_token_ids"):
        edges.append(Edge.TRUNCATED)
    if not is_program(job.agent) and asks_policy(job):
        edges += [Edge.ASKED, Edge.ASKED_AFTER_CALL]
    return tuple(edges)
