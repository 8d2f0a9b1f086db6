"""What single checks of the doctor say: of engines and routers, of workers, and of models that play
users.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollq
from rollq import Client, cli
from rollq.errors import RollqError
from rollq.ledger.workers.live_workers import AWAY, PAUSED, READY, EngineUse, LiveWorker, register
from rollq.servers.connection import connect
from rollq.servers.health import Finding, Level
from rollq.settings import Endpoint, Settings
from rollq_worker.commands.doctor import engines, environments, user_models
from rollq_worker.commands.doctor.limited import Limited
from rollq_worker.commands.doctor.redis_server import check_workers
from rollq_worker.remote.http_client import NoResponse
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.rollq.samples import group
from tests.rollq_worker.commands.doctor.conftest import Doctor
from tests.rollq_worker.engine.engine_servers import ScriptedEngine, reply, scripted_engine


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer()


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """One that says all of itself."""

    def tokenize(body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [7, *load_tokenizer().encode(body["prompt"])]}

    about = {"model_path": "some/model", "weight_version": "v3"}
    info = {"version": "0.5.23", "context_length": 4096}
    with scripted_engine(
        model_info=(200, about), server_info=(200, info), tokenize=tokenize
    ) as found:
        found.then = lambda body: reply([7], prompt_tokens=len(body["input_ids"]), id=body["rid"])
        yield found


def of_engine(engine: ScriptedEngine, tokenizer: Tokenizer | None) -> dict[str, tuple[str, str]]:
    return {one.name: (one.level.value, one.says) for one in engines.check(engine.url, tokenizer)}


def test_an_engine(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    assert of_engine(engine, tokenizer) == {
        "engine": ("ok", f"{engine.url} serves some/model; it samples tokens with logprobs"),
        "engine version": ("ok", "SGLang 0.5.23"),
        "engine context": ("ok", "4096 tokens"),
        "engine tokenizer": ("ok", "gives the same ids for 4,896 tokens"),
        "engine weights": ("ok", "version v3"),
    }


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("0.5.15", "ok"),
        ("0.5.23.post1", "ok"),
        ("0.5.14", "warn"),
        ("0.4.99", "warn"),
        ("0.5.24", "warn"),
        ("1.0.0", "warn"),
        ("main", "warn"),
        (None, "warn"),
    ],
)
def test_versions(
    engine: ScriptedEngine, tokenizer: Tokenizer, version: str | None, level: str
) -> None:
    engine.paths["/server_info"] = (200, {"version": version, "context_length": 4096})
    found = of_engine(engine, tokenizer)
    assert found.pop("engine version")[0] == level
    assert {status for status, _ in found.values()} == {"ok"}


def test_an_engine_without_logprobs(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    def bare(body: dict[str, Any]) -> dict[str, Any]:
        return reply(
            [7], prompt_tokens=len(body["input_ids"]), id=body["rid"], output_token_logprobs=None
        )

    engine.then = bare
    assert "the reply has no output_token_logprobs" in of_engine(engine, tokenizer)["engine"][1]


def test_an_engine_that_generates_nothing(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.then = (500, {"error": "broken"})
    (found,) = engines.check(engine.url, tokenizer)
    assert (
        found.level == "fail"
        and "generated nothing: the engine answered 500" in found.says
        and found.remedy
    )
    engine.paths["/ready"] = (503, b"")
    (found,) = engines.check(engine.url, tokenizer)
    assert found.level == "fail" and "/ready answers 503" in found.says


def test_an_engine_without_a_tokenizer_to_compare(engine: ScriptedEngine) -> None:
    found = of_engine(engine, None)
    assert found["engine"] == (
        "warn",
        f"{engine.url} serves some/model; it was not asked for a token",
    )
    assert found["engine tokenizer"][0] == "warn" and not engine.bodies()


class TestARouter:
    """It has no path but /generate, and its engines keep the prompts that they have seen."""

    def judged(
        self,
        engine: ScriptedEngine,
        tokenizer: Tokenizer,
        engines_behind: int,
        *,
        caching: bool = True,
    ) -> Any:
        seen: set[tuple[int, tuple[int, ...]]] = set()
        turn = iter(range(10**6))

        def generate(body: dict[str, Any]) -> dict[str, Any]:
            place = next(turn) % engines_behind, tuple(body["input_ids"])
            cached = len(body["input_ids"]) - 1 if caching and place in seen else 0
            seen.add(place)
            return reply(
                [7], prompt_tokens=len(body["input_ids"]), id=body["rid"], cached_tokens=cached
            )

        engine.paths.clear()
        engine.then = generate
        found = {one.name: one for one in engines.check(engine.url, tokenizer)}
        assert "a router does not tell" in found["engine version"].says
        assert all(
            one.level == "warn" and one.remedy
            for name, one in found.items()
            if "not checked" in one.says
        )
        return found["engine router"]

    def test_that_keeps_a_group_together(
        self, engine: ScriptedEngine, tokenizer: Tokenizer
    ) -> None:
        assert self.judged(engine, tokenizer, 1).level == "ok"
        keys = {
            headers.get("X-SMG-Routing-Key")
            for at, body, headers in engine.requests
            if at == "/generate"
        }
        assert (
            len(keys) == 2 and None in keys
        )  # the first token has no group, and all others have one

    def test_that_spreads_a_group(self, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
        found = self.judged(engine, tokenizer, 2)
        assert (
            found.level == "warn"
            and "spreads the turns" in found.says
            and "--policy manual" in found.remedy
        )

    def test_that_does_not_show_it(self, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
        found = self.judged(engine, tokenizer, 1, caching=False)
        assert found.level == "warn" and "does not show where turns go" in found.says

    def test_that_lists_its_engines(self, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
        engine.paths["/server_info"] = (200, {"version": "0.5.23", "max_queued_requests": 4})
        workers = [{"url": engine.url}, {"url": "http://127.0.0.1:9"}]
        with scripted_engine(workers=(200, {"workers": workers})) as router:
            router.then = lambda body: reply(
                [7], prompt_tokens=len(body["input_ids"]), id=body["rid"]
            )
            found = of_engine(router, tokenizer)
        assert found["engine behind 1"][0] == "ok" and found["engine behind 1 weights"] == (
            "ok",
            "version v3",
        )
        assert (
            found["engine behind 1 queue"][0] == "warn"
            and "holds 4 requests" in found["engine behind 1 queue"][1]
        )
        assert (
            found["engine behind 2"][0] == "warn"
            and "takes no requests" in found["engine behind 2"][1]
        )
        assert "engine weights" not in found  # what the router hides, its engines have told

    def test_that_leads_to_prefill_and_decode_servers(
        self, engine: ScriptedEngine, tokenizer: Tokenizer
    ) -> None:
        workers = [{"url": engine.url, "worker_type": role} for role in ("prefill", "decode")]
        with scripted_engine(workers=(200, {"workers": workers})) as router:
            router.then = lambda body: reply(
                [7], prompt_tokens=len(body["input_ids"]), id=body["rid"]
            )
            found = of_engine(router, tokenizer)
        assert found["engine behind 1"] == ("ok", f"{engine.url}, the prefill server of some/model")
        assert found["engine behind 2 weights"] == ("ok", "version v3")
        assert not engine.bodies()  # they answer the router alone


def test_engines_with_other_weights(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    first = engines.check(engine.url, tokenizer)
    assert engines.versions_differ([*first, *first]) == []
    engine.paths["/model_info"] = (200, {"weight_version": "v4"})
    (found,) = engines.versions_differ([*first, *engines.check(engine.url, tokenizer)])
    assert found.level == "warn" and "v3, v4" in found.says and "rollq engines sync" in found.remedy


def test_an_engine_with_too_old_weights_for_a_run(redis_url: str) -> None:
    found = [Finding("engine weights", Level.OK, "version v3", details={"weight_version": "v3"})]
    settings = Settings(redis_url=redis_url)
    with Client(redis_url, run="r") as client:
        client.publish(3, "v3")
        client.publish(4, "v4")
        client.submit(group())
        assert engines.too_old(settings, found) == []  # the run has no bound
        client.limit_staleness(1, 0)
        (said,) = engines.too_old(settings, found)
        assert (
            said.level == "warn"
            and "run r bounds staleness and has published version v4 (step 4)" in said.says
        )
        assert (
            "that serve version v3 play none" in said.says and "rollq engines sync" in said.remedy
        )
        client.publish(3, "v3")  # the trainer went back
        assert engines.too_old(settings, found) == []


def test_an_engine_that_lacks_the_adapter_of_a_run(
    engine: ScriptedEngine, tokenizer: Tokenizer, redis_url: str
) -> None:
    loaded = [{"id": "m", "parent": None}, {"id": "math@6", "parent": "m"}]
    engine.paths["/v1/models"] = (200, {"data": loaded})
    found, settings = engines.check(engine.url, tokenizer), Settings(redis_url=redis_url)
    assert any(one.says == "version v3; adapters math@6" for one in found)
    with Client(redis_url, run="r") as client:
        client.limit_staleness(1, 0)
        client.publish(6, "6")
        client.submit(group(adapter="math"))
        assert engines.too_old(settings, found) == []
        client.publish(7, "7")
        (said,) = engines.too_old(settings, found)
    assert (
        said.level == "warn"
        and f"its adapter math@7, which is not loaded on {engine.url}" in said.says
    )
    assert said.remedy == "rollq engines sync --adapter math --path DIR --version 7 loads it"


def test_lists_of_engines(
    doctor: Doctor, engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    (tmp_path / "list").write_text(f"{engine.url}\n# none\n")
    (tmp_path / "empty").write_text("# none\n")
    line = ["--redis", redis_url, "--engine", f"file:{tmp_path}/list", "--engine"]
    _, report = doctor(*line, f"file:{tmp_path}/empty")
    assert report["checks"][f"engine list file:{tmp_path}/empty"]["says"] == "lists no engine"
    assert report["checks"]["engine"]["status"] == "ok"
    _, report = doctor(*line, "redis:none")
    assert report["checks"]["engine list redis:none"]["next"] == "add one to the list"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"version": ""}, "runs rollq an older version"),
        ({"version": "9.9"}, "runs rollq 9.9"),
        ({"tokenizer": "t"}, "has another tokenizer or chat template"),
        ({"template": "t"}, "has another tokenizer or chat template"),
        ({"engine": AWAY}, "the engine of w is away"),
        ({"engines": (EngineUse("http://e", PAUSED, 0),)}, "http://e is paused"),
        ({"queues": ("big",)}, "no live worker serves rollq"),
    ],
)
def test_workers(redis_url: str, tokenizer: Tokenizer, changes: dict[str, Any], words: str) -> None:
    worker: dict[str, Any] = {
        "name": "w",
        "queues": ("rollq",),
        "tokenizer": tokenizer.hash,
        "template": tokenizer.template_hash,
        "engine": READY,
        "slots": 4,
        "busy": 1,
        "version": rollq.__version__,
    }
    with connect(redis_url) as client:
        register(client, LiveWorker(**{**worker, **changes}))
    (found,) = check_workers(Settings(redis_url=redis_url), tokenizer)
    assert found.level == ("warn" if words else "ok") and words in found.says
    assert bool(found.remedy) == bool(words)


@pytest.mark.parametrize(
    ("models", "chat", "level", "words"),
    [
        ((200, {"data": [{"id": "m"}]}), None, "ok", "models: m"),
        ((200, b"<html>"), None, "ok", "models: none"),
        ((404, {}), (400, {"error": {}}), "ok", "it does not list its models"),
        ((404, {}), (422, {}), "ok", "it does not list its models"),
        ((405, {}), (401, {}), "fail", "refuses a request without a key (401)"),
        ((403, {}), None, "fail", "refuses a request without a key (403)"),
        ((404, {}), (404, {}), "fail", "no OpenAI-compatible server"),
        ((302, {}), None, "fail", "no OpenAI-compatible server"),
        ((429, {}), None, "warn", "answers 429"),
        ((503, {}), None, "warn", "answers 503"),
        ("reset", None, "fail", "does not answer"),
    ],
)
def test_user_models(models: Any, chat: Any, level: str, words: str) -> None:
    with scripted_engine() as server:
        server.paths["/v1/models"] = models
        server.then = chat or (200, {})
        (found,) = user_models.check("gpt", Endpoint(f"{server.url}/v1"))
    assert found.level == level and words in found.says
    assert bool(found.remedy) == (level != "ok")


def test_environments_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "names", lambda: ["shop", "tau_bench:retail", "gone"])
    monkeypatch.setattr("rollq_worker.environments._domains", {})
    here, absent = environments.played_here([])
    assert here == ["shop", "gone"] or "tau_bench:retail" in here  # where that package is installed
    assert set(absent) <= {"tau_bench:retail"}


def test_an_environment_that_does_not_exist(doctor: Doctor) -> None:
    code, report = doctor("--env", "nosuch:thing")
    found = report["checks"]["environment nosuch:thing"]
    assert code == 1 and "there is no environment 'nosuch:thing'" in found["says"]
    code, report = doctor("--env", "shop")
    assert code == 0 and report["checks"]["environment shop"]["tools"] > 3


@pytest.mark.parametrize("error", [ValueError, RollqError, NoResponse, OSError, SystemExit])
def test_a_check_that_raises_ends_no_other_one_and_tells_no_password(
    error: type[BaseException],
) -> None:
    def check() -> list[Finding]:
        raise error("redis://me:secret@h:1 went away")

    (found,) = Limited("it", check, 60.0, "do this").findings()
    assert (found.name, found.level, found.remedy) == ("it", "fail", "do this")
    assert "redis://me:***@h:1 went away" in found.says


def test_a_package_that_is_missing_is_no_finding() -> None:
    def check() -> list[Finding]:
        raise ModuleNotFoundError(name="kombu")

    with pytest.raises(ModuleNotFoundError):
        Limited("it", check, 60.0, "do this").findings()


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--env", "shop", "--redis", "redis://127.0.0.1:1/0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(
        number for number, line in enumerate(lines) if line.startswith("fail redis: no Redis at")
    )
    assert lines[at + 1].startswith("      next: start one with `rollq redis`")
    assert (
        lines[-2] == "verdict: not ready: redis"
        and lines[-1] == f"next: {lines[at + 1].split('next: ')[1]}"
    )
    assert "warn broker: not checked: Redis does not answer" in lines
