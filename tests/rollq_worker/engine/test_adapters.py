"""Engines that lack the LoRA adapter of a request: they were restarted, have missed a sync, or come
late.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq.events import VersionSpan
from rollq_worker.engine import served_policies
from rollq_worker.engine.pool import EnginePool
from rollq_worker.failures import Drained
from rollq_worker.protocols import Adapter, Generated
from tests.rollq_worker.engine.clients import in_background, pool_of, raise_drained
from tests.rollq_worker.engine.engine_servers import (
    Answer,
    ScriptedEngine,
    good_reply,
    scripted_engine,
)
from tests.sample_requests import sample_request
from tests.waiting import until

REFUSALS = [
    "Got LoRA adapter that has never been loaded: math@7\nAll loaded adapters: dict_keys([]).",
    "The following requested LoRA adapters are not loaded: math@7\nLoaded "
    "adapters: odict_keys([]).",
    "Failed to implicitly load LoRA adapter math@7: it is gone",
    "LoRA adapter 'math@7' was requested, but LoRA is not enabled. Please launch the "
    "server with --enable-lora flag",
]
"""Of SGLang 0.5.23."""


def refusal(text: str) -> Answer:
    return 400, {"error": {"message": text}}


class Loading:
    """An engine that serves some adapters."""

    def __init__(self, stack: ExitStack, *served: str) -> None:
        self.served = set(served)
        self.server: ScriptedEngine = stack.enter_context(
            scripted_engine(ready=(200, {}), health=(200, b""))
        )
        self.server.then = self.reply

    def reply(self, body: dict[str, Any]) -> Any:
        return good_reply(body) if body["lora_path"] in self.served else refusal(REFUSALS[0])

    @property
    def asked(self) -> list[str]:
        return [body["lora_path"] for body in self.server.bodies()]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_policies, "ASK_S", 0.1)
    monkeypatch.setattr("rollq_worker.engine.pool.CHECK_S", 0.02)


def generate(pool: EnginePool, key: str, version: str | list[str], **options: Any) -> Generated:
    """With the version of `math`, or the one that stands first in the list at that time."""
    asked = sample_request(
        [1, 2, 3], key=key, adapter=lambda: Adapter("math", version[0]), **options
    )
    return pool.generate(asked)


def test_a_reply_has_the_version_of_the_adapter(stack: ExitStack) -> None:
    engine = Loading(stack, "math@7")
    assert generate(pool_of(stack, engine), "r/g/0", "7").versions == (VersionSpan("7", 0, 3),)
    assert engine.asked == ["math@7"]


@pytest.mark.parametrize("text", REFUSALS)
def test_an_engine_without_it_is_left_alone_and_no_job_is_blamed(
    stack: ExitStack, text: str
) -> None:
    lacks, has = Loading(stack), Loading(stack, "math@7")
    lacks.reply = lambda body: refusal(text)  # type: ignore[method-assign]
    lacks.server.then = lacks.reply
    pool = pool_of(stack, lacks, has)
    for number in range(10):
        assert generate(pool, f"r/g{number}/0", "7").ids
    assert [use.engine.policies.outdated for use in pool.usage()] == [True, False]
    assert len(lacks.asked) < 5, "an engine that lacks it is asked too often"


def test_a_call_waits_until_it_is_loaded_and_deadlines_stand_still(stack: ExitStack) -> None:
    engine = Loading(stack, "code@1")
    pool = pool_of(stack, engine)
    thread, found = in_background(partial(generate, pool, "r/g/0", "7"))
    until(lambda: pool.awaits_weights("r") and pool.stopped_s("r") > 0.2)
    other = sample_request([1, 2, 3], key="other/g/0", adapter=lambda: Adapter("code", "1"))
    assert pool.generate(other).ids and not pool.awaits_weights("other")
    assert pool.usage()[0].engine.policies.outdated  # another run's adapter changes nothing
    engine.served.add("math@7")
    thread.join(30)
    assert found[0].versions == (VersionSpan("7", 0, 3),)
    assert not pool.usage()[0].engine.policies.outdated


def test_a_call_that_waits_goes_on_with_the_version_that_is_published_meanwhile(
    stack: ExitStack,
) -> None:
    engine = Loading(stack)
    pool = pool_of(stack, engine)
    thread, found = in_background(partial(generate, pool, "r/g/0", version := ["7"]))
    until(lambda: pool.awaits_weights("r"))
    engine.served.add("math@8")
    version[0] = "8"
    thread.join(30)
    assert found[0].versions == (VersionSpan("8", 0, 3),)


def test_a_call_that_waits_can_be_stopped(stack: ExitStack) -> None:
    pool = pool_of(stack, Loading(stack))
    with pytest.raises(Drained):
        generate(
            pool, "r/g/0", "7", check=lambda: raise_drained() if pool.awaits_weights("r") else None
        )


def test_a_crowd_that_waits_does_not_ask_at_once(stack: ExitStack) -> None:
    """Each request carries a whole prompt."""
    engine = Loading(stack)
    pool = pool_of(stack, engine)
    threads = [
        in_background(partial(generate, pool, f"r/g{number}/0", "7"))[0] for number in range(8)
    ]
    until(lambda: pool.stopped_s("r") > 0.5)
    first = len(engine.asked)
    until(lambda: pool.stopped_s("r") > 1.5)
    assert len(engine.asked) - first < 20  # ten times ASK_S
    engine.served.add("math@7")
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_any_other_refusal_is_the_jobs_failure(stack: ExitStack) -> None:
    engine = Loading(stack)
    engine.server.then = refusal(
        "the regex of 'LoRA adapter that has never been loaded' does not compile"
    )
    with pytest.raises(JobFailure):
        generate(pool_of(stack, engine), "r/g/0", "7")
