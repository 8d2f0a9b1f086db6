"""Laws of the modelled engine: whatever the traffic, tokens and time are conserved, and looking changes nothing."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.simulation.engine_model import EngineModel, EngineShape, Finished, Request
from tests.rollq_worker.simulation.engine_model.traffic import ROOMY, SMALL, Arrival, arrivals, play

SHAPES = st.sampled_from(
    [SMALL, ROOMY, replace(SMALL, prefix_cache=False), replace(SMALL, kv_token_s=0.0, attended_pair_s=0.0)]
)


class Checked(EngineModel):
    """Checks the memory after each event."""

    def _next(self) -> None:
        super()._next()
        memory = self._memory
        parts = (memory.used - memory.cache.locked, memory.cache.locked, memory.cache.evictable)
        assert min(parts) >= 0
        assert sum(parts) <= self.shape.kv_tokens
        assert self._ends > self._began or self._ends == inf
        nodes = list(memory.cache.nodes())
        assert memory.cache.locked == sum(node.tokens for node in nodes if node.locks)
        assert memory.cache.evictable == sum(node.tokens for node in nodes if not node.locks)
        assert len(self._running) + len(self._prefilling) <= self.shape.max_running
        assert sum(take for _, take in self._prefilling) <= self.shape.chunk_tokens


class StepByStep(EngineModel):
    """The slow way: each decode step is an event."""

    def _steps_until_change(self) -> int:
        return min(1, super()._steps_until_change())


@given(SHAPES, arrivals())
def test_each_request_ends_once_and_memory_is_given_back(shape: EngineShape, traffic: list[Arrival]) -> None:
    model = Checked(shape)
    outcome = play(model, traffic)
    ended = [one.rid for one in outcome.finished]
    assert sorted(ended + list(outcome.aborted)) == sorted(one.request.rid for one in traffic)
    end = max([one.at for one in outcome.finished] + [8.0 + 10.0])
    load = model.load(end)
    assert (load.running, load.waiting, load.used_tokens) == (0, 0, 0)
    assert load.retractions >= sum(one.retractions for one in outcome.finished)


@given(SHAPES, arrivals())
def test_tokens_are_conserved(shape: EngineShape, traffic: list[Arrival]) -> None:
    model = Checked(shape)
    outcome = play(model, [replace(one, aborted_at=inf) for one in traffic])
    load = model.load(max(one.at for one in outcome.finished))
    assert load.sampled_tokens == sum(one.request.output_tokens for one in traffic)
    assert load.prompt_tokens == sum(tokens for one in traffic for _, tokens in one.request.prefix)
    assert load.cached_tokens == sum(one.cached_tokens for one in outcome.finished)


@given(SHAPES, arrivals())
def test_ends_are_in_order_and_after_the_least_time_they_take(shape: EngineShape, traffic: list[Arrival]) -> None:
    outcome = play(Checked(shape), traffic)
    by_id = {one.request.rid: one for one in traffic}
    assert [one.at for one in outcome.finished] == sorted(one.at for one in outcome.finished)
    for one in outcome.finished:
        arrival = by_id[one.rid]
        least = shape.step_s * max(1, arrival.request.output_tokens)
        assert one.queued_s >= 0
        assert one.prefill_s > 0
        assert one.at >= arrival.at + one.queued_s + least - 1e-9


@given(SHAPES, arrivals(), st.floats(0.003, 0.5))
def test_looking_changes_nothing(shape: EngineShape, traffic: list[Arrival], look_every: float) -> None:
    assert play(EngineModel(shape), traffic, look_every) == play(EngineModel(shape), traffic)


@given(SHAPES, arrivals())
def test_jumps_give_what_single_steps_give(shape: EngineShape, traffic: list[Arrival]) -> None:
    jumped, stepped = play(EngineModel(shape), traffic), play(StepByStep(shape), traffic)
    assert jumped.aborted == stepped.aborted
    assert [_rounded(one) for one in jumped.finished] == [_rounded(one) for one in stepped.finished]


def _rounded(one: Finished) -> Finished:
    return replace(one, at=round(one.at, 7), queued_s=round(one.queued_s, 7), prefill_s=round(one.prefill_s, 7))


@given(SHAPES, arrivals(), st.floats(0, 20))
def test_retracting_all_loses_no_request(shape: EngineShape, traffic: list[Arrival], at: float) -> None:
    model = Checked(shape)
    early = [replace(one, aborted_at=inf) for one in traffic if one.at < at]
    for one in sorted(early, key=lambda one: one.at):
        model.submit(one.request, one.at)
    ended = model.advance(at)
    before = {one.request.rid: sampled(model, one.request.rid, at) for one in early}
    model.retract_all(at)
    assert model.load(at).used_tokens == 0
    model.flush_cache()
    assert {rid: sampled(model, rid, at) for rid in before} == before
    while model.next_event() < inf:
        ended += model.advance(model.next_event())
    assert sorted(one.rid for one in ended) == sorted(one.request.rid for one in early)


@given(arrivals())
def test_a_hit_is_never_longer_than_what_was_shared(traffic: list[Arrival]) -> None:
    outcome = play(EngineModel(SMALL), traffic)
    by_id = {one.request.rid: one for one in traffic}
    for one in outcome.finished:
        arrival = by_id[one.rid]
        others = [other.request.prefix for other in traffic if other.request.rid != one.rid]
        longest = max((_shared(arrival.request.prefix, other) for other in others), default=0)
        assert one.cached_tokens <= longest


def _shared(one: tuple, other: tuple) -> int:
    tokens = 0
    for pair, also in zip(one, other, strict=False):
        if pair != also:
            break
        tokens += pair[1]
    return tokens


@given(arrivals(), st.data())
def test_sampled_tokens_never_fall_and_an_abort_returns_them(traffic: list[Arrival], data: st.DataObject) -> None:
    model = EngineModel(SMALL)
    for one in sorted(traffic, key=lambda one: one.at):
        model.submit(one.request, one.at)
    times = sorted(data.draw(st.lists(st.floats(8, 30), min_size=2, max_size=6)))
    seen = dict.fromkeys((one.request.rid for one in traffic), 0)
    for at in times:
        ended = {one.rid for one in model.advance(at)}
        for rid in ended:
            del seen[rid]
        for rid in seen:
            now = sampled(model, rid, at)
            assert now >= seen[rid]
            seen[rid] = now
    for rid, count in seen.items():
        assert model.abort(rid, times[-1]) == count


def sampled(model: EngineModel, rid: str, at: float) -> int:
    progress = model.progress(rid, at)
    return progress.sampled if progress is not None else 0


def request(rid: str, *prefix: tuple[str, int], output: int = 10, limit: int | None = None) -> Request:
    return Request(rid, prefix, f"{rid} said", output, limit)


def ends(model: EngineModel) -> dict[str, Finished]:
    found = {}
    while model.next_event() < inf:
        found |= {one.rid: one for one in model.advance(model.next_event())}
    return found


def test_one_request_takes_the_time_of_its_steps() -> None:
    model = EngineModel(SMALL)
    model.submit(request("a", ("p", 200), output=3), 1.0)
    fixed = SMALL.step_s + SMALL.running_s
    first = fixed + 128 * SMALL.prefill_token_s + 128e-6 + 1e-8 * 128 * 64
    second = fixed + 72 * SMALL.prefill_token_s + 200e-6 + 1e-8 * 72 * (128 + 36)
    decode = 2 * fixed + (201 + 202) * 1e-6
    end = ends(model)["a"]
    assert end.prefill_s == pytest.approx(first + second)
    assert end.at == pytest.approx(1.0 + first + second + decode)
    assert model.load(end.at).busy_s == pytest.approx(end.at - 1.0)


def test_a_second_turn_finds_its_history_in_the_cache() -> None:
    model = EngineModel(ROOMY)
    model.submit(request("a", ("p", 200), ("job", 50), output=30), 0.0)
    at = ends(model)["a"].at
    model.submit(request("b", ("p", 200), ("job", 50), ("a said", 30), ("tool", 40)), at)
    assert ends(model)["b"].cached_tokens == 280


def test_a_whole_prompt_in_the_cache_still_prefills_a_token() -> None:
    model = EngineModel(ROOMY)
    model.submit(request("a", ("p", 200)), 0.0)
    ends(model)
    model.submit(request("b", ("p", 200)), 100.0)
    assert ends(model)["b"].cached_tokens == 199


def test_siblings_that_arrive_together_all_prefill() -> None:
    model = EngineModel(ROOMY)
    for rid in "abc":
        model.submit(request(rid, ("p", 400), (rid, 20)), 0.0)
    assert [one.cached_tokens for one in ends(model).values()] == [0, 0, 0]


def test_a_cache_cut_into_blocks_is_found_by_the_next_turn() -> None:
    model = EngineModel(ROOMY)
    blocks = tuple((f"block {number}", 64) for number in range(4))
    first = Request("a", (*blocks[:2], ("tail", 10)), "unused", 100, stored=(*blocks[:3], ("rest", 46)))
    model.submit(first, 0.0)
    at = ends(model)["a"].at
    model.submit(Request("b", (*blocks, ("tail of b", 7)), "unused", 1), at)
    assert ends(model)["b"].cached_tokens == 192
    assert model.load(at + 100).used_tokens == 0


def test_a_full_memory_retracts_those_with_the_fewest_tokens() -> None:
    model = EngineModel(replace(SMALL, kv_tokens=1300, chunk_tokens=1000, prefix_cache=False))
    model.submit(request("old", ("a", 100), output=1000), 0.0)
    model.submit(request("young", ("b", 100), output=300), 13.0)  # the old one's reserve has shrunk by then
    done = ends(model)
    assert done["old"].retractions == 0
    assert done["young"].retractions == 1
    assert done["young"].at > done["old"].at


def test_the_queue_is_first_come_first_served() -> None:
    model = EngineModel(replace(ROOMY, max_running=1))
    for rid in "abcd":
        model.submit(request(rid, (rid, 50)), 0.0)
    done = ends(model)
    assert list(done) == list("abcd")
    assert done["d"].queued_s == pytest.approx(done["c"].at)


def test_what_cannot_be_is_refused() -> None:
    model = EngineModel(SMALL)
    with pytest.raises(ValueError, match="memory for 1000"):
        model.submit(request("a", ("p", 990)), 0.0)
    with pytest.raises(ValueError, match="empty prompt"):
        model.submit(request("a"), 0.0)
    model.submit(request("a", ("p", 10)), 1.0)
    with pytest.raises(ValueError, match="in flight"):
        model.submit(request("a", ("p", 10)), 1.0)
    with pytest.raises(ValueError, match="asked for"):
        model.advance(0.5)
    assert model.abort("unknown", 1.0) == 0
