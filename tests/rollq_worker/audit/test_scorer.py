"""The audit's requests against engines that misbehave; tests/contract has a real one."""

import math
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollq.errors import EngineFailure
from rollq_worker.audit import scorer as scorer_module
from rollq_worker.audit.detection import open_scorer
from rollq_worker.audit.scorer import Scorer, ScoringRefused
from rollq_worker.protocols import Adapter
from tests.rollq_worker.audit.scoring_engine import decoded, sampled, scores, scoring_engine
from tests.rollq_worker.engine.engine_servers import ScriptedEngine

IDS = array("I", [5, 6, 7, 8])


Connect = Callable[[ScriptedEngine], Scorer]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer_module, "BUSY_BACKOFF_S", (0.01, 0.01))
    monkeypatch.setattr(scorer_module, "BUSY_TRIES", 3)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with scoring_engine() as engine:
        yield engine


@pytest.fixture
def connect() -> Iterator[Connect]:
    scorers: list[Scorer] = []

    def make(engine: ScriptedEngine) -> Scorer:
        scorers.append(open_scorer(engine.url))
        return scorers[-1]

    yield make
    for scorer in scorers:
        scorer.close()


def test_a_score(engine: ScriptedEngine, connect: Connect) -> None:
    engine.answers = [scores]
    scorer = connect(engine)
    assert (scorer.version, scorer.max_tokens) == ("v1", 89)
    found = scorer.score(IDS, 1)
    assert list(found.logprobs) == [-0.5, -0.5] and not found.top_logprobs
    (sent,) = engine.bodies()
    assert sent["input_ids"] == [5, 6, 7, 8] and sent["sampling_params"] == {"max_new_tokens": 0}
    assert (sent["return_logprob"], sent["logprob_start_len"], "top_logprobs_num" in sent) == (
        True,
        1,
        False,
    )


def test_an_adapter_that_the_engine_lacks_is_named_with_the_line_that_loads_it(
    engine: ScriptedEngine, connect: Connect
) -> None:
    missing = (
        "Got LoRA adapter that has never been loaded: math@7\nAll loaded adapters: dict_keys([])."
    )
    engine.answers = [scores, (400, {"error": {"message": missing}})]
    scorer = connect(engine)
    scorer.score(IDS, 1, adapter=Adapter("math", "6"))
    with pytest.raises(
        ScoringRefused,
        match=f"--engine {engine.url} --adapter math --path DIR --version 7` loads it",
    ):
        scorer.score(IDS, 1, adapter=Adapter("math", "7"))
    assert [body["lora_path"] for body in engine.bodies()] == ["math@6", "math@7"]


def test_the_likeliest_tokens(engine: ScriptedEngine, connect: Connect) -> None:
    tops = [None, [[-0.1, 7, None], [-2.4, 5, None]], [[-0.2, 8, None]]]
    engine.answers = [lambda body: scores(body, input_top_logprobs=tops)]
    assert connect(engine).score(IDS, 1, likeliest=2).top_logprobs == [
        array("d", [-0.1, -2.4]),
        array("d", [-0.2]),
    ]
    assert engine.bodies()[0]["top_logprobs_num"] == 2


def test_a_score_at_another_temperature(engine: ScriptedEngine, connect: Connect) -> None:
    engine.answers = [decoded]
    assert connect(engine).score_decoded(IDS, 9, 0.7, Adapter("math", "6")) == -0.5
    [sent] = engine.bodies()
    assert (sent["input_ids"], sent["token_ids_logprob"], sent["lora_path"]) == (
        [5, 6, 7, 8],
        [9],
        "math@6",
    )
    assert (
        sent["sampling_params"] == {"max_new_tokens": 1, "temperature": 0.7}
        and sent["return_logprob"]
    )


def test_an_engine_that_cannot_score_at_a_temperature(
    engine: ScriptedEngine, connect: Connect
) -> None:
    engine.answers = [sampled, (400, {"error": {"message": "no such field"}})]
    for said in ("reports no logprobs of the tokens that it is asked for", "no such field"):
        with pytest.raises(ScoringRefused, match=said):
            connect(engine).score_decoded(IDS, 9, 0.7)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            lambda body: decoded(body, output_token_ids_logprobs=[[[-0.5, 7, None]]]),
            "of token 7 in place of 9",
        ),
        (
            lambda body: decoded(body, output_token_ids_logprobs=[[[math.nan, 9, None]]]),
            "is not finite",
        ),
        (lambda body: decoded(body, output_token_ids_logprobs=[[]]), "not a scoring reply"),
        (lambda body: decoded(body, output_token_ids_logprobs=[None]), "not a scoring reply"),
    ],
)
def test_a_broken_score_at_a_temperature(
    engine: ScriptedEngine, connect: Connect, answer: Any, said: str
) -> None:
    engine.answers = [answer]
    with pytest.raises(EngineFailure, match=said):
        connect(engine).score_decoded(IDS, 9, 0.7)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, {"error": {"message": "broken"}}), "answered 500: broken"),
        (
            lambda body: scores(body, input_token_logprobs=[[None, 6], [math.nan, 7], [-1, 8]]),
            "is not finite",
        ),
        ((200, {"meta_info": {}}), "not a scoring reply"),
        ((200, {"meta_info": [3]}), "not a scoring reply"),
        (
            lambda body: scores({**body, "input_ids": [5, 6, 7, 9]}),
            "are not those of the 3 ids sent",
        ),
        (
            lambda body: scores({**body, "logprob_start_len": 2}),
            "the 2 logprobs are not those of the 3",
        ),
        (lambda body: scores(body, weight_version="v2"), "by weights 'v1', another by 'v2'"),
        (lambda body: scores(body, input_top_logprobs=[None]), "1 lists of likeliest tokens for 3"),
        (
            lambda body: scores(body, input_top_logprobs=[None, [[None, 7]], [[-1, 8]]]),
            "not a scoring reply",
        ),
        ("reset", "the engine broke"),
    ],
)
def test_what_ends_an_audit(
    engine: ScriptedEngine, connect: Connect, answer: Any, said: str
) -> None:
    engine.answers = [answer]
    with pytest.raises(EngineFailure) as caught:
        connect(engine).score(IDS, 1, likeliest=2)
    assert said in str(caught.value) and engine.url in str(caught.value)
    assert len(engine.bodies()) == 1  # what broke an engine is never sent again


def test_tokens_that_the_engine_samples(engine: ScriptedEngine, connect: Connect) -> None:
    engine.answers = [sampled]
    found = connect(engine).sample(IDS, {"max_new_tokens": 2, "top_k": 4})
    assert found.ids[0] >= 100 and found.ids.tolist()[1:] == [7]
    assert (found.logprobs.tolist(), found.stopped) == ([-0.5, -0.5], True)
    [sent] = engine.bodies()
    assert (sent["input_ids"], sent["sampling_params"]) == (
        [5, 6, 7, 8],
        {"max_new_tokens": 2, "top_k": 4},
    )
    assert sent["return_logprob"]


def test_what_was_decoded_is_scored_by_a_prefill_of_its_own(
    engine: ScriptedEngine, connect: Connect
) -> None:
    engine.answers = [sampled, scores, decoded, sampled]
    first, second = connect(engine), connect(engine)
    first.sample(IDS, {"max_new_tokens": 2})
    first.score(IDS, 1)
    first.score_decoded(IDS, 9, 0.7)
    second.sample(IDS, {"max_new_tokens": 2})
    keys = [body["extra_key"] for body in engine.bodies()]
    assert keys[1] == keys[2] and len(set(keys)) == 3


@pytest.mark.parametrize(
    "answer",
    [
        lambda body: sampled(body, output_token_logprobs=[[None, 7, None]]),
        lambda body: sampled(body, output_token_logprobs=[[math.nan, 7, None]]),
        lambda body: sampled(body, output_token_logprobs=5),
        lambda body: sampled(body, finish_reason=None),
    ],
)
def test_a_broken_sample(engine: ScriptedEngine, connect: Connect, answer: Any) -> None:
    engine.answers = [answer]
    with pytest.raises(EngineFailure, match=engine.url):
        connect(engine).sample(IDS, {"max_new_tokens": 2})


def test_a_full_queue_is_waited_for_and_not_for_ever(
    engine: ScriptedEngine, connect: Connect
) -> None:
    full = (503, {"object": "error", "message": "The request queue is full.", "code": 503})
    engine.answers = [full, full, scores]
    assert len(connect(engine).score(IDS, 1).logprobs) == 2
    engine.answers = [full] * 3
    with pytest.raises(EngineFailure, match="queue is full"):
        connect(engine).score(IDS, 1)


def test_an_engine_that_stays_busy_is_not_asked_for_other_names(
    engine: ScriptedEngine, connect: Connect
) -> None:
    engine.paths["/model_info"] = (503, {"error": {"message": "no server is here"}})
    with pytest.raises(EngineFailure, match="answered 503: no server is here"):
        connect(engine)


def test_a_router_says_what_one_of_its_servers_has(
    engine: ScriptedEngine, connect: Connect
) -> None:
    engine.paths["/get_model_info"] = engine.paths.pop("/model_info")
    assert connect(engine).version == "v1"


def test_which_ids_the_engine_knows(engine: ScriptedEngine, connect: Connect) -> None:
    engine.paths["/detokenize"] = (200, {"text": ["a", "b", "", "c", ""]})
    assert connect(engine).vocabulary_end([9, 3, 5, 3, 7, 11]) == 10
    assert engine.bodies("/detokenize")[0]["tokens"] == [[3], [5], [7], [9], [11]]
    engine.paths["/detokenize"] = (200, {"text": "abc"})
    assert connect(engine).vocabulary_end([9]) is None
    del engine.paths["/detokenize"]
    assert connect(engine).vocabulary_end([9]) is None
