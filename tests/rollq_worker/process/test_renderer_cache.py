"""A worker's renderers: checked once for what a job needs, without holding up jobs that need something else."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollq.commands.stats import table
from rollq.errors import JobFailure
from rollq.job import History, Job
from rollq.ledger.connection import connect
from rollq.ledger.ledger import Ledger
from rollq.settings import Settings
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.environments import domain
from rollq_worker.process import job_task, renderer_cache
from rollq_worker.process.job_task import Player
from rollq_worker.process.renderer_cache import KEPT, Renderers, needed
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.rollq_worker.engine.engines import replaying
from tests.rollq_worker.tokens.models import Models


def job(**changes: Any) -> Job:
    return Job(run="r", group="g", env="shop", task=0, **changes)


def tools(name: str = "add") -> list[Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "description": "a number"}}}
    return [{"type": "function", "function": {"name": name, "description": "Adds.", "parameters": parameters}}]


def test_what_a_job_needs() -> None:
    assert needed(job()) == ()
    assert needed(job(agent_args={"calls": "all"})) == (Edge.CALLS,)
    assert needed(job(sampling={"stop": "END"})) == (Edge.CUT,)
    assert needed(job(agent_args={"calls": "all"}, sampling={"regex": "a"})) == (Edge.CALLS, Edge.CUT)


def test_a_job_is_refused_for_an_edge_that_it_needs_only(shared: Path) -> None:
    made = Renderers(Models(shared).real("llama-3.1"))
    with pytest.raises(JobFailure, match="calls -> tools"):
        made.of(job(agent_args={"calls": "all"}), tools())
    assert made.of(job(), tools()) is made.of(job(agent_args={"calls": "first"}), tools())
    with pytest.raises(JobFailure, match="calls -> tools"):
        made.of(job(agent_args={"calls": "all"}), tools())


def test_history_by_the_template_asks_less_of_bridges(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(renderer_cache, "checked_renderer", lambda *args, anew: asked.append(anew) or object())
    made = Renderers(load_tokenizer(None))
    assert made.of(job(), tools()) is not made.of(job(history=History.TEMPLATE), tools())
    assert asked == [False, True]


def test_a_check_runs_once_and_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, runs = threading.Event(), threading.Event(), []

    def check(tokenizer: Any, tools: Any, *edges: Edge, anew: bool) -> object:
        runs.append(name := tools[0]["function"]["name"])
        if name == "slow":
            begun.set()
            assert go.wait(10)
        return object()

    monkeypatch.setattr(renderer_cache, "checked_renderer", check)
    made = Renderers(load_tokenizer(None))
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(made.of, job(), tools("slow")) for _ in range(3)]
        assert begun.wait(10)
        assert made.of(job(), tools("quick")) is made.of(job(), tools("quick"))
        go.set()
        assert len({id(future.result()) for future in slow}) == 1
    assert sorted(runs) == ["quick", "slow"]


def test_a_check_that_fails_is_no_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[Any] = iter([JobFailure("no"), object()])

    def check(*args: Any, **options: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(renderer_cache, "checked_renderer", check)
    made = Renderers(load_tokenizer(None))
    with pytest.raises(JobFailure):
        made.of(job(), tools())
    assert made.of(job(), tools()) is made.of(job(), tools())


def test_the_ones_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_cache, "checked_renderer", lambda *args, **options: object())
    made = Renderers(load_tokenizer(None))
    first = made.of(job(), tools("t0"))
    for n in range(1, KEPT + 20):
        made.of(job(), tools(f"t{n}"))
        assert made.of(job(), tools("t0")) is first
    assert len(made) == KEPT


@pytest.fixture
def player(redis_url: str) -> Iterator[Player]:
    tokenizer = load_tokenizer(None)
    client = connect(redis_url)
    with replaying() as url:
        engine = SGLangEngine(url, vocab_size=tokenizer.vocab_size)
        settings = Settings(redis_url=redis_url, engine_url=url, concurrency=4)
        yield Player(settings, client, engine, tokenizer, "w", threading.Event())
        engine.close()
    client.close()


def test_malformed_tools_are_the_environments_failure(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(player.connection, "r")
    ledger.submit([job()])
    opened = domain("shop").open("train", 0, {})
    world = domain("shop")

    class Untyped:
        name, version, task = world.name, world.version, world.task

        def open(self, *args: Any) -> Any:
            return type("Toolless", (), {"tools": [{"type": "function"}], "system_prompt": opened.system_prompt})()

    monkeypatch.setattr(job_task, "domain", lambda name: Untyped())
    summary = player.play("r/g/0")
    assert (summary["stop"], summary["failure"]) == ("failed", "env")
    assert "r/g/0: environment.tools: ValueError" in str(ledger.job("r/g/0"))


def test_fidelity_is_counted_when_a_job_ends(player: Player) -> None:
    ledger = Ledger(player.connection, "r")
    ledger.submit([job()])
    assert player.play("r/g/0")["stop"] == "done"
    stats = ledger.stats()
    assert (
        0.5 < stats["extension_ratio"] < 1 and stats["extension_ratio"] == stats["kept_tokens"] / stats["sent_tokens"]
    )
    assert (stats["traces"], stats["malformed_turns"], stats["version_breaks"]) == (1, 0, 0)
    assert 0 <= stats["drifted_turns"] <= stats["turns"]
    assert any(line.startswith("fidelity ") and "% of prompts kept   1 traces" in line for line in table(stats))
