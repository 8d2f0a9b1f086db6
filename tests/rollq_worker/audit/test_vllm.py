"""The audit's requests to vLLM; tests/contract has a real one."""

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollq.errors import EngineFailure
from rollq_worker.audit.detection import open_scorer
from rollq_worker.audit.scorer import Scorer, ScoringRefused
from rollq_worker.engine.vllm.server import RAW
from rollq_worker.protocols import Adapter
from tests.rollq_worker.engine.engine_servers import Answer, ScriptedEngine, scripted_engine

IDS = array("I", [5, 6, 7, 8])
PATH = "/inference/v1/generate"
INFO = "/server_info?config_format=json"
Connect = Callable[[], Scorer]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with scripted_engine() as engine:
        models = {"data": [{"root": "/model", "max_model_len": 90}]}
        engine.paths |= {
            "/version": (200, {"version": "0.32.0"}),
            "/weight_info": (200, {"weight_version": "v1"}),
            "/v1/models": (200, models),
            INFO: config(),
        }
        yield engine


@pytest.fixture
def connect(engine: ScriptedEngine) -> Iterator[Connect]:
    scorers: list[Scorer] = []

    def make() -> Scorer:
        scorers.append(open_scorer(engine.url))
        return scorers[-1]

    yield make
    for scorer in scorers:
        scorer.close()


def config(**model: Any) -> Answer:
    config = {"logprobs_mode": "processed_logprobs", "max_logprobs": 2, **model}
    return 200, {"vllm_config": {"model_config": config}}


def reply(version: str = "v1", rows: Any = None, **choice: Any) -> Answer:
    spans = [{"version": version, "start": 0, "end": 1}]
    return 200, {"prompt_logprobs": rows, "choices": [{"weight_versions": spans, **choice}]}


def entry(logprob: float) -> dict[str, Any]:
    return {"logprob": logprob, "rank": 1}


ROWS = [
    None,
    {"6": entry(-1)},
    {"7": entry(-2.5), "5": entry(-0.1), "3": entry(-2)},
    {"8": entry(-0.5), "1": entry(-1.5)},
]


def test_a_score(engine: ScriptedEngine, connect: Connect) -> None:
    engine.answers = [reply(rows=ROWS)]
    scorer = connect()
    assert (scorer.version, scorer.max_tokens, scorer.cuts) == ("v1", 89, True)
    scores = scorer.score(IDS, 1, likeliest=128)
    assert list(scores.logprobs) == [-2.5, -0.5]
    assert list(map(list, scores.top_logprobs)) == [[-0.1, -2.0], [-0.5, -1.5]]
    [sent] = engine.bodies(PATH)
    assert (sent["token_ids"], sent["sampling_params"]) == (
        [5, 6, 7, 8],
        {"max_tokens": 1, "prompt_logprobs": 2},
    )


def test_a_score_at_another_temperature(engine: ScriptedEngine, connect: Connect) -> None:
    tops = [{"token_id": 4, "logprob": -3.0}, {"token_id": 9, "logprob": -0.7}]
    engine.answers = [reply(logprobs={"content": [{"token_id": 4, "top_logprobs": tops}]})]
    assert connect().score_decoded(IDS, 9, 0.7, Adapter("math", "6")) == -0.7
    [sent] = engine.bodies(PATH)
    assert sent["model"] == "math@6"
    assert sent["sampling_params"]["temperature"] == 0.7


def test_tokens_that_the_engine_samples(engine: ScriptedEngine, connect: Connect) -> None:
    content = [{"token_id": 4, "logprob": -3.0}, {"token_id": 7, "logprob": -0.7}]
    engine.answers = [reply(logprobs={"content": content}, finish_reason="stop")]
    sampled = connect().sample(IDS, {"max_new_tokens": 2, "stop_token_ids": [7]})
    assert (list(sampled.ids), list(sampled.logprobs)) == ([4, 7], [-3.0, -0.7])
    assert sampled.stopped
    params = {"max_tokens": 2, "stop_token_ids": [7], "logprobs": 0}
    assert engine.bodies(PATH)[0]["sampling_params"] == params


def test_what_was_decoded_is_scored_by_a_prefill_of_its_own(
    engine: ScriptedEngine, connect: Connect
) -> None:
    engine.answers = [reply(logprobs={"content": []}, finish_reason="stop"), reply(rows=ROWS)]
    scorer = connect()
    scorer.sample(IDS, {"max_new_tokens": 2})
    scorer.score(IDS, 1)
    assert len({body["cache_salt"] for body in engine.bodies(PATH)}) == 2


def test_refusals(engine: ScriptedEngine, connect: Connect) -> None:
    unknown = (400, {"error": {"message": "Token id 9 is out of vocabulary"}})
    engine.answers = [unknown, (404, {"error": {"message": "The model does not exist"}})]
    scorer = connect()
    with pytest.raises(ScoringRefused, match="out of vocabulary"):
        scorer.score(IDS, 1)
    with pytest.raises(ScoringRefused, match="--adapter math --path DIR --version 7` loads it"):
        scorer.score(IDS, 1, adapter=Adapter("math", "7"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply("v2", ROWS), "by weights 'v1', another by 'v2'"),
        (reply(rows=ROWS[:3]), "not a scoring reply"),
        (reply(rows=[None, {"6": entry(-1)}, {"9": entry(-1)}, {"8": entry(-1)}]), "KeyError: '7'"),
        (reply(), "not a scoring reply"),
        ((403, {"error": "disabled"}), "answered 403"),
    ],
)
def test_a_broken_score(engine: ScriptedEngine, connect: Connect, answer: Any, reason: str) -> None:
    engine.answers = [answer]
    with pytest.raises(EngineFailure, match=reason):
        connect().score(IDS, 1)


@pytest.mark.parametrize("info", [3, [3], {"vllm": {}}, {"vllm_config": {}}])
def test_an_unreadable_configuration(engine: ScriptedEngine, connect: Connect, info: Any) -> None:
    engine.paths[INFO] = (200, info)
    engine.answers = [reply(logprobs={"content": [{"logprob": 0.0}]})]
    with pytest.raises(EngineFailure):
        connect()


def test_logprobs_before_temperature_are_refused(engine: ScriptedEngine, connect: Connect) -> None:
    engine.paths[INFO] = config(logprobs_mode="raw_logprobs")
    with pytest.raises(EngineFailure, match=RAW):
        connect()


def test_without_development_mode_its_version_is_unknown(
    engine: ScriptedEngine, connect: Connect
) -> None:
    del engine.paths["/weight_info"], engine.paths[INFO]
    engine.answers = [reply(logprobs={"content": [{"logprob": 0.0}]}), reply(rows=ROWS)]
    scorer = connect()
    assert scorer.version is None
    scorer.score(IDS, 1, likeliest=128)
    assert engine.bodies(PATH)[-1]["sampling_params"]["prompt_logprobs"] == 20
