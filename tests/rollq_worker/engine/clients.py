"""How the engine tests use a client."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.failures import Drained
from rollq_worker.protocols import Generated
from tests.rollq_worker.engine.engine_servers import ScriptedEngine, good_reply
from tests.sample_requests import sample_request

KEY = "run/group/0"
Connect = Callable[..., EngineClient]


def generate(
    client: EngineClient,
    key: str = KEY,
    ids: Sequence[int] = (1, 2, 3),
    check: Callable[[], None] = lambda: None,
    **sampling: Any,
) -> Generated:
    """At most ten tokens."""
    return client.generate(sample_request(ids, sampling=sampling, key=key, check=check))


def pool_of(stack: ExitStack, *engines: Any) -> EnginePool:
    """Of engines that have a `server`, until the stack is closed."""
    pool = EnginePool([engine.server.url for engine in engines], vocab_size=1000)
    stack.callback(pool.close)
    return pool


def in_background(generate: Callable[[], Generated]) -> tuple[threading.Thread, list[Generated]]:
    """The thread, and what it will have generated."""
    found: list[Generated] = []
    thread = threading.Thread(target=lambda: found.append(generate()), daemon=True)
    thread.start()
    return thread, found


def one_text(*ids: int) -> VocabularyProof:
    """The proof for a tokenizer that gives these ids for its one text."""

    class OneText:
        vocab_size = 0
        added_tokens: ClassVar[dict[str, int]] = {}

        def encode(self, text: str) -> array[int]:
            return array("I", ids)

        def decode(self, ids: Sequence[int]) -> str:
            return " ".join(map(str, ids))

    return VocabularyProof(OneText())


def port(client: EngineClient) -> int:
    return int(client.url.rsplit(":", 1)[1])


def is_waiting(client: EngineClient, engine: ScriptedEngine, requests: int = 1) -> bool:
    """That many requests have arrived, and their threads wait for a response, so that the waits can
    be cut.
    """
    waiting = [request for request in client._in_flight._by_thread.values() if request.sock]
    return len(engine.bodies()) == len(waiting) == requests


def raise_drained() -> None:
    raise Drained("stopping")


class HeldReply:
    """A good reply that comes when `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        self.release.wait(60)
        return good_reply(body)
