"""The training tokens are the sampled tokens: a proxy between worker and engine is the witness."""

from pathlib import Path

import pytest

from rollq import Budget, Client, Job
from rollq.export.record import record
from rollq_worker.engine.exchange.generate import PROBE
from tests.e2e.stack import Stack
from tests.recorder import recording

Exchange = tuple[dict, dict]
"""Request and reply of one /generate call."""


def play(
    stack: Stack, env: str, split: str, tasks: range, size: int, **job
) -> tuple[list[dict], dict]:
    """Play the tasks through the proxy. Returns the exported lines, and each job's exchanges."""
    with recording(stack.engine_url, stack.folder / "calls.jsonl") as proxy:
        worker = stack.worker(8, engine_url=proxy.url)
        with Client(stack.redis_url, run="fidelity") as client:
            client.submit([Job(env=env, split=split, task=i, size=size, **job) for i in tasks])
            client.seal()
            found = []
            for batch in client.batches(groups=2, timeout=120):
                found += [record(t) for t in batch.trajectories]
                batch.ack()
        worker.terminate()
        worker.wait(60)
        seen: dict[str, list[Exchange]] = {}
        for call in proxy.calls():
            job = call["request"]["rid"].rpartition("/")[0]
            if job == PROBE:  # what the worker asked when it started
                continue
            seen.setdefault(job, []).append((call["request"], call["reply"]))
    return found, seen


def check(lines: list[dict], seen: dict[str, list[Exchange]]) -> None:
    assert {line["job"] for line in lines} == set(seen)
    for line in lines:
        exchanges = seen[line["job"]]
        assert all("text" not in request and request["return_logprob"] for request, _ in exchanges)
        sent = [request["input_ids"] for request, _ in exchanges]
        said = [reply["output_ids"] for _, reply in exchanges]
        for before, reply, after in zip(sent, said, sent[1:], strict=False):
            assert after[: len(before) + len(reply)] == before + reply
        assert line["tokens"] == sent[-1] + said[-1]
        sampled = [position for position, bit in enumerate(line["mask"]) if bit]
        assert [line["tokens"][i] for i in sampled] == [t for reply in said for t in reply]
        logprobs = [
            lp for _, reply in exchanges for lp, *_ in reply["meta_info"]["output_token_logprobs"]
        ]
        assert [line["logprobs"][i] for i in sampled] == pytest.approx(logprobs, abs=1e-6)
        versions = [
            reply["meta_info"]["weight_version"]
            for _, reply in exchanges
            for _ in reply["output_ids"]
        ]
        assert [line["versions"][i] for i in sampled] == versions


@pytest.mark.parametrize(
    ("env", "split"),
    [
        pytest.param("shop", "train", marks=pytest.mark.promise),
        ("tau2_2025:retail", "test"),
        ("tau2_2025:airline", "test"),
    ],
)
def test_tokens_are_what_was_sent_and_returned(stack: Stack, env: str, split: str):
    stack.engine("--env", env, "--mistakes", "0.5", "--seed", "3")
    lines, seen = play(stack, env, split, range(6), 2)
    assert len(lines) == 12
    check(lines, seen)


@pytest.mark.parametrize(
    ("agent", "agent_args"),
    [
        ("act", {}),
        ("react", {}),
        ("few-shot", {"examples": ["user: Where is my order?\nassistant: On its way."]}),
    ],
)
def test_with_every_agent_strategy(stack: Stack, agent: str, agent_args: dict):
    stack.engine("--mistakes", "0.5", "--seed", "3")
    lines, seen = play(stack, "shop", "train", range(6), 2, agent=agent, agent_args=agent_args)
    assert len(lines) == 12
    check(lines, seen)
    assert {line["stop"] for line in lines} == {"done"}
    assert 0 < sum(line["reward"] for line in lines) <= 12
    calls = {bool(message.get("tool_calls")) for line in lines for message in line["messages"]}
    assert calls == ({False, True} if agent == "few-shot" else {False})


def test_with_the_qwen_vocabulary(stack: Stack, qwen_folder: Path):
    stack.engine("--tokenizer", str(qwen_folder), "--mistakes", "0.5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLQ_TOKENIZER", str(qwen_folder))
        lines, seen = play(stack, "shop", "train", range(4), 2)
    assert len(lines) == 8
    check(lines, seen)


def test_a_tight_budget_cuts_without_a_stray_token(stack: Stack):
    stack.engine()
    lines, seen = play(
        stack, "shop", "train", range(4), 2, budget=Budget(max_new_tokens=12, max_turns=4)
    )
    assert {line["stop"] for line in lines} <= {"length", "turns"}
    check(lines, seen)
