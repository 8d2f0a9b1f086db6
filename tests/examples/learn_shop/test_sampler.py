"""Interruptions of the example's sampler in the middle of a reply. Commands run in its thread, so
nothing is left to chance.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from examples.learn_shop.sampler import Request, Sampler
from tests.examples.learn_shop.scoring import logprobs

PROMPT = list(range(300, 400))
TOKENS = 30


@pytest.fixture
def sampler(models: list[str]) -> Iterator[Sampler]:
    sampler = Sampler(models[0], "old", running=4)
    sampler.start()
    yield sampler
    sampler.call(lambda: sampler.abort(None)).result()


def request(sampler: Sampler, rid: str = "r") -> Request:
    made = Request(rid, PROMPT, TOKENS, frozenset())
    sampler.call(lambda: sampler.submit(made)).result()
    return made


def test_a_prompt_is_scored_by_one_forward_pass(sampler: Sampler, models: list[str]) -> None:
    entries = sampler.call(lambda: sampler.score(PROMPT, 40)).result()
    assert [entry[1] for entry in entries] == PROMPT[40:] and entries[0][0] is None
    wanted = logprobs(models[0], PROMPT[:41], PROMPT[41:])
    assert [entry[0] for entry in entries[1:]] == pytest.approx(wanted, abs=1e-4)


def after_tokens(sampler: Sampler, request: Request, act: Callable[[], object]) -> None:
    """Do this in the middle of the request."""

    def look() -> None:
        if len(request.ids) < 10:
            sampler.call(look)
        else:
            act()

    sampler.call(look)


def check(reply: dict[str, Any], models: dict[str, str]) -> None:
    """Each token has the logprob that the weights of its version give it."""
    meta, ids = reply["meta_info"], reply["output_ids"]
    spans = meta["weight_versions"]
    assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]
    for span in spans:
        found = [entry[0] for entry in meta["output_token_logprobs"][span["start"] : span["end"]]]
        wanted = logprobs(
            models[span["version"]], PROMPT + ids[: span["start"]], ids[span["start"] : span["end"]]
        )
        assert found == pytest.approx(wanted, abs=1e-4), span


def test_an_abort_keeps_what_was_sampled(sampler: Sampler, models: list[str]) -> None:
    aborted, other = request(sampler, "aborted"), request(sampler, "other")
    after_tokens(sampler, aborted, lambda: sampler.abort("aborted"))
    reply = aborted.reply.result()
    assert (
        reply["meta_info"]["finish_reason"]["type"] == "abort"
        and 10 <= len(reply["output_ids"]) < TOKENS
    )
    check(reply, {"old": models[0]})
    assert len(other.reply.result()["output_ids"]) == TOKENS


def test_clients_that_have_gone_end_nothing_but_their_requests(sampler: Sampler) -> None:
    gone, other = request(sampler, "gone"), request(sampler, "other")

    def go() -> None:
        sampler.call(lambda: None).cancel()
        gone.reply.cancel()

    after_tokens(sampler, gone, go)
    assert len(other.reply.result(60)["output_ids"]) == TOKENS
    assert sampler.call(lambda: "alive").result(60) == "alive"


def test_a_pause_that_aborts_ends_all(sampler: Sampler) -> None:
    both = [request(sampler, rid) for rid in "ab"]
    after_tokens(sampler, both[1], lambda: sampler.pause("abort"))
    assert [one.reply.result()["meta_info"]["finish_reason"]["type"] for one in both] == [
        "abort",
        "abort",
    ]
    assert sampler.paused


def test_a_retracted_request_goes_on_under_the_new_weights(
    sampler: Sampler, models: list[str]
) -> None:
    one = request(sampler)

    def update() -> None:
        sampler.pause("retract")
        sampler.load(models[1], "new", flush=False)
        sampler.flush()
        sampler.resume()

    after_tokens(sampler, one, update)
    reply = one.reply.result()
    assert [span["version"] for span in reply["meta_info"]["weight_versions"]] == ["old", "new"]
    check(reply, {"old": models[0], "new": models[1]})


def test_a_request_in_place_goes_on_without_reading_its_tokens_again(
    sampler: Sampler, models: list[str]
) -> None:
    one = request(sampler)
    slots = []

    def pause() -> None:
        slots.append(one.slot)
        sampler.pause("in_place")
        slots.append(one.slot)
        sampler.resume()

    after_tokens(sampler, one, pause)
    check(one.reply.result(), {"old": models[0]})
    assert all(a == b is not None for a, b in pairwise(slots))


def test_more_requests_than_slots_wait_for_their_turn(sampler: Sampler, models: list[str]) -> None:
    requests = [request(sampler, str(number)) for number in range(11)]
    for one in requests:
        check(one.reply.result(), {"old": models[0]})
