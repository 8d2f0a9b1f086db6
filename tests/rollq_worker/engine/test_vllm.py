"""vLLM's form: what a worker sends, reads, and refuses to train on. tests/contract/test_vllm.py has
the real server.
"""

import json
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq.events import Finish, VersionSpan
from rollq.trajectory_extras import ExpertShape
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.exchange.http import EngineHttp
from rollq_worker.engine.exchange.prompts import write_ids
from rollq_worker.engine.exchange.replies import AdapterMissing, EngineUnavailable, RequestFailed
from rollq_worker.engine.exchange.server import GenerationRequest
from rollq_worker.engine.sglang.server import SGLangServer
from rollq_worker.engine.vllm.server import (
    RAW,
    REMEDIES,
    SPECULATIVE,
    TOKENS_ONLY,
    WATERMARK,
    VllmServer,
)
from rollq_worker.protocols import Adapter, Routing, SampleRequest
from rollq_worker.remote.http_client import Response
from tests.rollq_worker.engine.engine_servers import ScriptedEngine, good_reply, scripted_engine
from tests.waiting import until

GENERATE = "/inference/v1/generate"
CONFIG: dict[str, Any] = {
    "model_config": {"logprobs_mode": "processed_logprobs"},
    "watermark_config": None,
}


def one(ids: tuple[int, ...] = (5, 6), **options: Any) -> GenerationRequest:
    known = {name: options.pop(name) for name in ("adapter", "stop_ids") if name in options}
    request = SampleRequest(
        ids=array("I", ids),
        sampling=options.pop("sampling", {}),
        max_new_tokens=options.pop("max_new_tokens", 9),
        key="r/g/0",
        check=lambda: None,
        **options,
    )
    return GenerationRequest(turn=request, prompt=write_ids(request.ids), rid="r/g/0/1", **known)


def reply(*ids: int, **choice: Any) -> dict[str, Any]:
    """The body of a 200 for these sampled ids."""
    logprobs = {"content": [{"token_id": id, "logprob": -0.5, "rank": 1} for id in ids]}
    said = {
        "index": 0,
        "finish_reason": "stop",
        "token_ids": list(ids),
        "logprobs": logprobs,
        "weight_versions": [{"version": "7", "start": 0, "end": len(ids)}],
        **choice,
    }
    usage = {"prompt_tokens": 2, "completion_tokens": len(ids)}
    return {"request_id": "generate-tokens-r/g/0/1", "choices": [said], "usage": usage}


def read(body: dict[str, Any]) -> Any:
    return VllmServer(EngineHttp("http://127.0.0.1:1")).read_reply(json.dumps(body).encode(), one())


def written(**options: Any) -> dict[str, Any]:
    server = VllmServer(EngineHttp("http://127.0.0.1:1"))
    body: dict[str, Any] = json.loads(server.write_body(one(**options)))
    return body


BAD_JSON = [3, "text", [], [3], {"data": 3}, {"data": {"root": 1}}, {"data": [{"root": 1}]}]
BAD_JSON += [{"vllm_config": value} for value in (3, {}, {"model_config": [3]})]


@pytest.mark.parametrize("body", BAD_JSON)
def test_answers_of_another_form_are_unknown_facts(body: object):
    paths = ("v1/models", "weight_info", "server_info?config_format=json", "is_paused", "metrics")
    with scripted_engine(**dict.fromkeys(paths, (200, body))) as engine:
        http = EngineHttp(engine.url)
        server = VllmServer(http)
        assert (server.model(), server.weight_version(), server.load()) == (None, None, None)
        assert not server.limits().reported and not server.is_paused()
        assert server.objection()
        http.close()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "many"])
@pytest.mark.parametrize("name", ["num_requests_running", "kv_cache_usage_perc"])
def test_gauges_that_are_not_numbers_are_no_load(name: str, value: str):
    gauges = {"num_requests_running": "1", "num_requests_waiting": "2", "kv_cache_usage_perc": "0"}
    lines = [f'vllm:{key}{{engine="0"}} {number}' for key, number in gauges.items()]
    bad = [f'vllm:{name}{{engine="1"}} {value}']
    with scripted_engine(metrics=(200, "\n".join(lines).encode())) as engine:
        http = EngineHttp(engine.url)
        server = VllmServer(http)
        assert server.load() is not None
        engine.paths["/metrics"] = (200, "\n".join(lines + bad).encode())
        assert server.load() is None
        http.close()


@contextmanager
def vllm(config: dict[str, Any] | None = CONFIG, port: int = 0) -> Iterator[ScriptedEngine]:
    """A server that says that it is vLLM; without `config`, not in development mode."""
    paths: dict[str, Any] = {
        "version": (200, {"version": "0.32.0"}),
        "health": (200, b""),
        "v1/models": (200, {"data": [{"id": "m", "root": "/m", "max_model_len": 600}]}),
        "weight_info": (200, {"weight_version": "7"}),
    }
    if config is not None:
        paths["server_info?config_format=json"] = (200, {"vllm_config": config})
        paths["is_paused"] = (200, {"is_paused": False})
    with scripted_engine(port=port, **paths) as engine:

        def answer(body: dict[str, Any]) -> Any:
            named = {"request_id": f"generate-tokens-{body['request_id']}"}
            return 200, {**reply(*range(body["sampling_params"]["max_tokens"])), **named}

        engine.then = answer
        yield engine


def test_a_request_has_vllms_names() -> None:
    body = written(
        sampling={"temperature": 0.5, "sampling_seed": 3, "min_new_tokens": 20, "top_k": -1},
        stop_ids=(7, 8),
        adapter=Adapter("math", "4"),
    )
    assert body == {
        "token_ids": [5, 6],
        "request_id": "r/g/0/1",
        "model": "math@4",
        "sampling_params": {
            "temperature": 0.5,
            "seed": 3,
            "top_k": -1,
            "min_tokens": 9,
            "max_tokens": 9,
            "stop_token_ids": [7, 8],
            "logprobs": 0,
            "skip_special_tokens": False,
        },
    }


@pytest.mark.parametrize(
    ("sampling", "structured"),
    [
        ({"json_schema": '{"type": "object"}'}, {"json": {"type": "object"}}),
        ({"json_schema": "$$ANY$$"}, {"json_object": True}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ],
)
def test_grammars(sampling: dict[str, Any], structured: dict[str, Any]) -> None:
    params = written(sampling=sampling)["sampling_params"]
    assert params["structured_outputs"] == structured
    assert not params.keys() & sampling.keys()


def test_what_vllm_lacks_is_refused_by_name() -> None:
    with pytest.raises(JobFailure, match="r/g/0: stop_regex is SGLang's alone"):
        written(sampling={"stop_regex": "a"})
    with pytest.raises(JobFailure, match="r/g/0: routed experts are read from SGLang only"):
        written(routing=Routing(start=0, shape=ExpertShape(layers=1, top_k=1, experts=4)))


def test_stop_ids_do_not_end_a_turn_that_ignores_them() -> None:
    sampling = {"ignore_eos": True, "stop_token_ids": [3]}
    assert written(sampling=sampling, stop_ids=(7,))["sampling_params"]["stop_token_ids"] == []


def test_a_reply() -> None:
    spans = [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 2}]
    generated = read(reply(3, 4, weight_versions=spans, finish_reason="length"))
    assert (generated.ids.tolist(), generated.finish) == ([3, 4], Finish.LENGTH)
    assert generated.versions == (VersionSpan("7", 0, 1), VersionSpan("8", 1, 2))
    for usage in (5, {"prompt_tokens_details": [1]}):
        assert read({**reply(3), "usage": usage}).cached_tokens == 0
    aborted = read(reply(finish_reason="abort", logprobs=None))
    assert (len(aborted.ids), aborted.finish) == (0, Finish.ABORT)


MASKED = {"content": [{"token_id": 3, "logprob": -9999.0}]}
OTHERS = {"content": [{"token_id": 4, "logprob": -0.5}]}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (reply(3, logprobs=MASKED), "marks a masked one"),
        (reply(3, logprobs=OTHERS), "do not belong to the 1 output ids"),
        (reply(3, logprobs=None), "unreadable logprobs"),
        (reply(3, weight_versions=[{"version": "7", "start": 1, "end": 2}]), "do not tile"),
        (reply(3, finish_reason="error"), "not a reply of vLLM"),
        (reply(), "no token was sampled"),
        (reply(*range(10)), "where 9 were allowed"),
        ({**reply(3), "usage": {"prompt_tokens": 1}}, "saw 1 prompt tokens of 2"),
        ({**reply(3), "request_id": "generate-tokens-other"}, "answers another request"),
        ({**reply(3), "choices": []}, "not a reply of vLLM"),
    ],
)
def test_a_reply_that_is_none(body: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestFailed, match=why):
        read(body)


@pytest.mark.parametrize(
    ("status", "adapter", "error", "why"),
    [
        (401, None, EngineUnavailable, "start it without --api-key"),
        (403, None, EngineUnavailable, "start vLLM with --enable-scale-out"),
        (404, None, EngineUnavailable, "vLLM 0.32 or newer"),
        (404, Adapter("math", "4"), AdapterMissing, "does not exist"),
        (404, Adapter("none", "4"), EngineUnavailable, "vLLM 0.32 or newer"),
        (400, None, JobFailure, "r/g/0: the engine answered 400: no such"),
        (503, None, EngineUnavailable, "503"),
    ],
)
def test_a_refusal_blames_who_is_to_blame(
    status: int, adapter: Adapter | None, error: type[Exception], why: str
) -> None:
    message = "no such parameter" if status == 400 else "The model `math@4` does not exist."
    body = json.dumps({"error": {"message": message}}).encode()
    if adapter and adapter.name == "none":
        body = b'{"detail": "Not Found"}'
    server = VllmServer(EngineHttp("http://127.0.0.1:1"))
    refusal = server.refusal(Response(status, body, ""), replace(one(), adapter=adapter))
    assert type(refusal) is error and why in str(refusal)


@pytest.mark.parametrize("rest", ["", " plus the number of requested output tokens (at least 1)"])
def test_a_context_that_was_not_known_is_learnt(
    connect: Callable[..., EngineClient], rest: str
) -> None:
    message = f"The decoder prompt (length 2){rest} is longer than the maximum model length of 2. M"
    with vllm() as engine:
        engine.paths["/v1/models"] = (404, b"")
        engine.then = (400, {"error": {"message": message}})
        client = connect(engine)
        assert (client.generate(one().turn).finish, client.room(1)) == (Finish.LENGTH, 1)


def test_a_worker_finds_out_that_it_is_vllm(connect: Callable[..., EngineClient]) -> None:
    with vllm() as engine:
        found = connect(engine)
        assert found.ready() and isinstance(found.server, VllmServer)
        assert (found.server.model(), found.server.weight_version()) == ("/m", "7")
        generated = found.generate(one().turn)
        assert len(generated.ids) == 9 and found.room(2) == 598
        assert [path for path, *_ in engine.requests if path == GENERATE] == [GENERATE]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**CONFIG, "model_config": {"logprobs_mode": "raw_logprobs"}}, RAW),
        ({"model_config": {**CONFIG["model_config"], "skip_tokenizer_init": True}}, TOKENS_ONLY),
        ({**CONFIG, "speculative_config": {"method": "ngram"}}, SPECULATIVE),
        ({**CONFIG, "watermark_config": {"kind": "kgw"}}, WATERMARK),
    ],
)
def test_tokens_that_cannot_be_trained_on_are_not_sampled(
    connect: Callable[..., EngineClient], config: dict[str, Any], why: str
) -> None:
    with vllm(config) as engine:
        assert connect(engine).why_not_ready() == why
        assert not engine.bodies(GENERATE)


def test_a_server_that_restarts_behind_a_proxy_is_asked_again(
    connect: Callable[..., EngineClient],
) -> None:
    raw = {**CONFIG, "model_config": {"logprobs_mode": "raw_logprobs"}}
    with vllm(raw) as engine:
        client = connect(engine)
        assert client.why_not_ready() == RAW
        version = engine.paths.pop("/version")
        assert client.why_not_ready() == "" and isinstance(client.server, SGLangServer)
        client = connect(engine)
        engine.paths["/version"] = version
        engine.paths["/server_info?config_format=json"] = (500, b"")
        assert "not known which logprobs" in client.why_not_ready()
        engine.paths["/server_info?config_format=json"] = (200, {"vllm_config": CONFIG})
        assert client.why_not_ready() == ""


def test_a_reply_of_a_server_that_came_back_with_raw_logprobs_is_not_kept(
    connect: Callable[..., EngineClient],
) -> None:
    path = "/server_info?config_format=json"
    with vllm() as engine:
        client = connect(engine)
        assert client.ready()
    waiting = ThreadPoolExecutor(1).submit(client.generate, one().turn)
    until(lambda: not client.available)
    raw = {"vllm_config": {"model_config": {"logprobs_mode": "raw_logprobs"}}}
    # it answers requests before it is asked for anything else
    with vllm(port=engine.port) as engine:
        engine.paths[path] = (200, raw)
        until(lambda: any(at == path for at, *_ in engine.requests))
        assert not waiting.done()
        engine.paths[path] = (200, {"vllm_config": CONFIG})
        waiting.result(60)


@pytest.mark.parametrize("first", ["vLLM", "SGLang"])
def test_a_server_of_the_other_kind_at_the_same_address(
    connect: Callable[..., EngineClient], first: str
) -> None:
    missing = (404, {"detail": "Not Found"})
    with vllm() as engine:
        of_vllm, version = engine.then, engine.paths["/version"]

        def answer(body: dict[str, Any]) -> Any:
            kind = "vLLM" if "token_ids" in body else "SGLang"
            if kind != now:
                return missing
            return of_vllm(body) if kind == "vLLM" else good_reply(body)  # type: ignore[operator]

        engine.then = answer
        client = connect(engine)
        for now in (first, "SGLang" if first == "vLLM" else "vLLM", first):
            engine.paths["/version"] = version if now == "vLLM" else missing
            assert client.generate(one().turn).ids and (
                isinstance(client.server, VllmServer) is (now == "vLLM")
            )


def test_a_proxy_without_a_server_does_not_say_which_kind_is_behind_it(
    connect: Callable[..., EngineClient],
) -> None:
    with vllm() as engine:
        version, engine.paths["/version"] = engine.paths["/version"], (502, b"")
        client = connect(engine)
        assert isinstance(client.server, SGLangServer)
        engine.paths["/version"] = version
        assert isinstance(client.server, VllmServer)


def test_a_key_that_is_wanted_in_mid_run_costs_the_job_nothing(
    connect: Callable[..., EngineClient],
) -> None:
    with vllm() as engine:
        client = connect(engine)
        engine.answers += [(401, {"error": "Unauthorized"}), (403, {"error": "Forbidden"})] * 10
        assert len(client.generate(one().turn).ids) == 9


@pytest.mark.parametrize("processed", [True, False])
def test_without_development_mode_a_token_without_rivals_shows_the_logprobs(
    connect: Callable[..., EngineClient], processed: bool
) -> None:
    with vllm(None) as engine:

        def answer(body: dict[str, Any]) -> Any:
            params = body["sampling_params"]
            if params.get("temperature", 1.0) > 2.0:  # as vLLM 0.32
                return 400, {"error": {"message": "temperature must be in [0, 2]"}}
            logprob = 0.0 if processed and params.get("top_k") == 1 else -1.0
            entry = {"token_id": 3, "logprob": logprob, "top_logprobs": []}
            return 200, reply(3, logprobs={"content": [entry]})

        engine.then = answer
        assert connect(engine).why_not_ready() == ("" if processed else RAW)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_without_development_mode_a_server_that_gives_no_tokens_is_named(
    connect: Callable[..., EngineClient], status: int
) -> None:
    with vllm(None) as engine:
        engine.then = (status, {"detail": "Not Found"})
        assert REMEDIES[status] in connect(engine).why_not_ready()


def test_a_paused_server_is_waited_for(connect: Callable[..., EngineClient]) -> None:
    with vllm() as engine:
        found = connect(engine)
        engine.paths["/is_paused"] = (200, {"is_paused": True})
        assert not found.ready() and found.paused and found.server.is_paused()
        assert not found.server.is_hung()
        engine.paths["/is_paused"] = (500, {})
        assert found.server.is_hung() and not found.ready()  # its core has to answer


def test_its_load(connect: Callable[..., EngineClient]) -> None:
    lines = """
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""
    with vllm() as engine:
        engine.paths["/metrics"] = (200, lines.encode())
        load = connect(engine).server.load()
        assert load is not None
        assert (load.running, load.waiting, load.token_usage) == (4, 2, 0.25)
