"""A worker's renderers are checked once for the needs of a job, and hold up no job with other
needs.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from rollq.commands.stats import table
from rollq.errors import JobFailure
from rollq.job import Job
from rollq.token_stats import is_reencoded
from rollq_worker.environments import domain
from rollq_worker.process import episode_player
from rollq_worker.process.attempts import renderer_cache
from rollq_worker.process.attempts.renderer_cache import MAX_RENDERERS, RendererCache, needed_edges
from rollq_worker.process.job_task import JobRunner
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import FailsFirst
from tests.rollq_worker.tokens.family_habits import ALL_HABITS


def job(**changes: Any) -> Job:
    return Job(run="r", group="g", env="shop", task=0, **changes)


def tools(name: str = "add") -> list[Any]:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "a number"}},
    }
    return [
        {
            "type": "function",
            "function": {"name": name, "description": "Adds.", "parameters": parameters},
        }
    ]


def test_a_job_needs_edges_for_its_agent_and_its_stops() -> None:
    assert needed_edges(job()) == ()
    assert needed_edges(job(agent_args={"calls": "all"})) == (Edge.CALLS,)
    asked = {"kind": "summary", "over": 9}
    assert needed_edges(job(context=asked)) == (Edge.ASKED, Edge.ASKED_AFTER_CALL)
    assert needed_edges(job(context={**asked, "endpoint": "e", "model": "m"})) == ()
    assert needed_edges(job(sampling={"stop": "END"})) == (Edge.TRUNCATED,)
    assert needed_edges(job(agent_args={"calls": "all"}, sampling={"regex": "a"})) == (
        Edge.CALLS,
        Edge.TRUNCATED,
    )


def test_a_job_is_refused_only_for_an_edge_that_it_needs() -> None:
    made = RendererCache(ALL_HABITS["llama-3.2"].tokenizer("llama-3.2"))
    with pytest.raises(JobFailure, match="calls -> tools"):
        made.get(job(agent_args={"calls": "all"}), tools())
    assert made.get(job(), tools()) is made.get(job(agent_args={"calls": "first"}), tools())
    with pytest.raises(JobFailure, match="calls -> tools"):
        made.get(job(agent_args={"calls": "all"}), tools())


def test_what_an_agent_program_needs_is_found_out_by_its_requests() -> None:
    made = RendererCache(ALL_HABITS["llama-3.2"].tokenizer("llama-3.2"))
    program = job(agent="a_program")
    assert made.get(program, tools(), cut=True).tools == made.get(program, tools()).tools
    with pytest.raises(JobFailure, match="calls -> tools"):
        made.get(program, tools(), several=True)


def test_text_actions_need_no_tools_of_the_template() -> None:
    made = RendererCache(load_tokenizer(None))
    assert made.get(job(agent="act"), tools()) is made.get(job(agent="react"), tools("sub"))
    assert (made.get(job(agent="act"), tools()).tools, made.get(job(), tools()).tools) == (
        [],
        tools(),
    )
    # Its tools are the template's.
    assert made.get(job(agent="a_program"), tools()) is made.get(job(), tools())


def test_a_check_runs_once_and_holds_up_only_jobs_that_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go, runs = threading.Event(), threading.Event(), []

    def check(tokenizer: Any, tools: Any, *edges: Edge, rerender: bool) -> object:
        runs.append(name := tools[0]["function"]["name"])
        if name == "slow":
            begun.set()
            assert go.wait(10)
        return object()

    monkeypatch.setattr(renderer_cache, "checked_renderer", check)
    made = RendererCache(load_tokenizer(None))
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(made.get, job(), tools("slow")) for _ in range(3)]
        assert begun.wait(10)
        assert made.get(job(), tools("quick")) is made.get(job(), tools("quick"))
        go.set()
        assert len({id(future.result()) for future in slow}) == 1
    assert sorted(runs) == ["quick", "slow"]


def test_a_check_that_fails_runs_again_for_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    check = FailsFirst(lambda *args, **options: object(), JobFailure("no"))
    monkeypatch.setattr(renderer_cache, "checked_renderer", check)
    made = RendererCache(load_tokenizer(None))
    with pytest.raises(JobFailure):
        made.get(job(), tools())
    assert made.get(job(), tools()) is made.get(job(), tools())


def test_tools_whose_keys_stand_in_another_order_are_other_tools() -> None:
    cache = RendererCache(load_tokenizer())
    [one] = tools()
    other = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in one.items()
    }
    assert other == one
    for shown in (one, other):
        assert json.dumps(cache.get(job(), [shown]).tools) == json.dumps([shown])


def test_the_renderers_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_cache, "checked_renderer", lambda *args, **options: object())
    made = RendererCache(load_tokenizer(None))
    first, *others = [made.get(job(), tools(f"t{n}")) for n in range(MAX_RENDERERS)]
    assert made.get(job(), tools("t0")) is first
    made.get(job(), tools("one more"))
    assert made.get(job(), tools("t0")) is first and made.get(job(), tools("t2")) is others[1]
    assert made.get(job(), tools("t1")) is not others[0]


def test_malformed_tools_are_the_environments_failure(
    runner: JobRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.ledger_of("r").submit([job()])
    opened = domain("shop").open("train", 0, {})
    world = domain("shop")

    class Untyped:
        name, version, task = world.name, world.version, world.task

        def open(self, *args: Any) -> Any:
            return type(
                "Toolless",
                (),
                {"tools": [{"type": "function"}], "system_prompt": opened.system_prompt},
            )()

    monkeypatch.setattr(episode_player, "domain", lambda name: Untyped())
    summary = runner.run("r/g/0")
    assert (summary["stop"], summary["failure"]) == ("failed", "env")
    assert "r/g/0: environment.tools: ValueError" in str(reader(runner.ledger_of("r")).job("r/g/0"))


def test_fidelity_is_counted_when_a_job_ends(runner: JobRunner) -> None:
    assert is_reencoded("r/e/0")
    runner.ledger_of("r").submit([replace(job(), group="e")])
    assert runner.run("r/e/0")["stop"] == "done"
    stats = reader(runner.ledger_of("r")).stats()
    assert (
        0.5 < stats["extension_ratio"] < 1
        and stats["extension_ratio"] == stats["kept_tokens"] / stats["sent_tokens"]
    )
    assert (stats["traces"], stats["malformed_turns"], stats["version_breaks"]) == (1, 0, 0)
    assert 0 <= stats["drifted_turns"] <= stats["reencoded_turns"] == stats["turns"]
    assert any(
        line.startswith("fidelity ") and "% of prompts kept   1 traces" in line
        for line in table({**stats, "waits": "", "seconds": {}})
    )
