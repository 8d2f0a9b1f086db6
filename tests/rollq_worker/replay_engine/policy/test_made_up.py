"""Made-up logprobs agree with each other."""

from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.replay_engine.policy import made_up


@given(ids=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=50), data=st.data())
def test_scoring_agrees_with_sampling_wherever_it_starts(
    ids: list[int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(ids) - 1))
    start = data.draw(st.integers(0, cut - 1))
    sampled = made_up.continuation(ids[cut - 1], ids[cut:])
    assert all(-3 < score < 0 for score in sampled)
    scored = made_up.prompt(ids, start)
    assert scored[0] is None and scored[cut - start :] == sampled


def test_nothing_to_score() -> None:
    assert made_up.prompt([1, 2], 2) == []


@given(before=st.integers(0, 999), token=st.integers(0, 999), count=st.integers(1, 1000))
def test_the_best_tokens_are_scored_like_all_others(before: int, token: int, count: int) -> None:
    best = made_up.best(before, token, count, 1000)
    assert len({id for _, id in best}) == count and best == sorted(best, reverse=True)
    assert all(score == made_up.logprob(before, id) and 0 <= id < 1000 for score, id in best)
    score = made_up.logprob(before, token)
    assert (score, token) in best or score <= best[-1][0]
