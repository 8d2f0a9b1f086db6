"""Engines that serve older weights than a call accepts: they were restarted, have missed an update,
or come late.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from rollq_worker.engine import served_policies
from rollq_worker.engine.pool import EnginePool
from rollq_worker.failures import Drained, OtherWeights
from rollq_worker.protocols import Generated
from tests.rollq_worker.engine.clients import in_background, pool_of, raise_drained
from tests.rollq_worker.engine.engine_servers import (
    ScriptedEngine,
    good_reply,
    reply,
    scripted_engine,
)
from tests.sample_requests import sample_request
from tests.waiting import until


class Served:
    """An engine, and the version that it serves. `tells`: whether /model_info has it."""

    def __init__(self, stack: ExitStack, version: str, *, tells: bool = True) -> None:
        self.version = version
        paths: dict[str, Any] = {"ready": (200, {}), "health": (200, b"")}
        if tells:
            paths["model_info"] = lambda body: {"weight_version": self.version}
        self.server: ScriptedEngine = stack.enter_context(scripted_engine(**paths))
        self.server.then = self.reply

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = min(3, body["sampling_params"]["max_new_tokens"])
        spans = [{"version": self.version, "start": 0, "end": tokens}]
        return reply(
            [7, 8, 9][:tokens],
            prompt_tokens=len(body["input_ids"]),
            id=body["rid"],
            weight_versions=spans,
        )

    @property
    def asked(self) -> list[int]:
        """Most tokens of each request."""
        return [body["sampling_params"]["max_new_tokens"] for body in self.server.bodies()]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_policies, "ASK_S", 0.05)
    monkeypatch.setattr("rollq_worker.engine.pool.CHECK_S", 0.05)


def generate(
    pool: EnginePool,
    key: str,
    accepts: served_policies.Accepts | None = None,
    check: Callable[[], None] = lambda: None,
    pinned: str = "",
) -> Generated:
    """At most ten tokens."""
    return pool.generate(
        sample_request([1, 2, 3], key=key, check=check, accepts=accepts, pinned=pinned)
    )


def version(found: Generated) -> str:
    [span] = found.versions
    return span.version


def test_an_outdated_engine_is_left_alone_while_others_are_there(stack: ExitStack) -> None:
    old, new = Served(stack, "default"), Served(stack, "5")
    pool = pool_of(stack, old, new)
    for number in range(10):
        assert version(generate(pool, f"r/g{number}/0", accepts={"5", "6"}.__contains__)) == "5"
    assert old.asked == []
    assert [use.engine.policies.outdated for use in pool.usage()] == [True, False]
    old.version = "6"
    until(lambda: version(generate(pool, "r/g0/0", accepts={"6"}.__contains__)) == "6")


def test_without_a_bound_every_engine_is_used(stack: ExitStack) -> None:
    old = Served(stack, "default")
    assert version(generate(pool_of(stack, old), "r/g/0")) == "default"
    assert old.asked and not [path for path, _, _ in old.server.requests if path == "/model_info"]


def test_a_call_waits_for_the_published_weights_and_deadlines_stand_still(stack: ExitStack) -> None:
    engine = Served(stack, "4")
    pool = pool_of(stack, engine)
    thread, found = in_background(partial(generate, pool, "r/g/0", {"5"}.__contains__))
    until(lambda: pool.awaits_weights("r"))
    assert not pool.awaits_weights("other")
    until(lambda: pool.stopped_s("r") > 0.1)
    assert pool.stopped_s("other") < 0.1
    assert version(generate(pool, "other/g/0")) == "4"  # another run has no bound
    engine.version = "5"
    thread.join(30)
    assert version(found[0]) == "5" and not pool.awaits_weights("r")
    assert len(engine.asked) == 2


def test_a_call_that_waits_can_be_stopped(stack: ExitStack) -> None:
    pool = pool_of(stack, Served(stack, "4"))
    with pytest.raises(Drained):
        generate(pool, "r/g/0", accepts={"5"}.__contains__, check=raise_drained)
    assert not pool.awaits_weights("r")


def test_a_pinned_call_does_not_wait(stack: ExitStack) -> None:
    engine = Served(stack, "4")
    pool = pool_of(stack, engine)
    assert pool.serves("4") and not pool.serves("5")
    with pytest.raises(
        OtherWeights, match="r/g/0 is pinned to weights '5', and no engine serves them"
    ):
        generate(pool, "r/g/0", accepts="5".__eq__, pinned="5")
    assert engine.asked == [] and not pool.awaits_weights("r") and pool.stopped_s("r") < 0.1


def test_a_pinned_call_goes_back_when_its_weights_go(stack: ExitStack) -> None:
    """The engine was given others since it was asked."""
    engine = Served(stack, "5")
    pool = pool_of(stack, engine)
    generate(pool, "r/g/0", accepts="5".__eq__, pinned="5")
    engine.version = "6"
    with pytest.raises(OtherWeights):
        generate(pool, "r/g/1", accepts="5".__eq__, pinned="5")
    assert len(engine.asked) == 2 and not pool.awaits_weights("r")


def test_what_a_restarted_engine_samples_is_not_kept(stack: ExitStack) -> None:
    """Its restart was too quick to be noticed."""
    engine = Served(stack, "5")
    pool = pool_of(stack, engine)
    generate(pool, "r/g/0", accepts={"5"}.__contains__)
    engine.version = "default"
    thread, found = in_background(partial(generate, pool, "r/g/0", {"5"}.__contains__))
    until(lambda: len(engine.asked) == 2 and pool.awaits_weights("r"))
    engine.version = "5"
    thread.join(30)
    assert version(found[0]) == "5"


def test_a_reply_with_a_part_of_older_weights_is_not_kept(stack: ExitStack) -> None:
    engine = Served(stack, "5")
    pool = pool_of(stack, engine)
    spans = [{"version": "4", "start": 0, "end": 1}, {"version": "5", "start": 1, "end": 3}]
    engine.server.answers = [lambda body: good_reply(body, weight_versions=spans)]
    assert version(generate(pool, "r/g/0", accepts={"5"}.__contains__)) == "5"


def test_a_router_is_asked_for_single_tokens_until_its_engines_are_up_to_date(
    stack: ExitStack,
) -> None:
    router = Served(stack, "default", tells=False)
    pool = pool_of(stack, router)
    thread, found = in_background(partial(generate, pool, "r/g/0", {"5"}.__contains__))
    until(lambda: len(router.asked) >= 3)
    router.version = "5"
    thread.join(30)
    assert version(found[0]) == "5"
    first, *probes, last = router.asked
    assert first == last > 1 and set(probes) == {1}
