"""Agent programs in real workers: their tokens, and what becomes of them when a worker dies or
stops.
"""

import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rollq import Budget, Client, Job
from rollq.export.record import record
from rollq_worker.agents.known_agents import FILES, add_file
from tests.conftest import REPO
from tests.e2e.stack import Stack, stop
from tests.e2e.test_sampled_tokens import check, play
from tests.recorder import recording

EXAMPLE = f"{REPO / 'examples/agents/openai_agent.py'}:play"
BRANCHING = """
    from openai import OpenAI

    def play(episode):
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=600) as client:
            def ask(messages, **more):
                reply = client.chat.completions.create(model="m", messages=messages, \
max_tokens=30, **more)
                return {"role": "assistant", "content": reply.choices[0].message.content or \
"nothing"}
            user = lambda text: {"role": "user", "content": text}
            main = [*episode.messages, ask(episode.messages)]
            helper = [{"role": "system", "content": "You look things up."}, user("What is this \
about?")]
            helper.append(ask(helper))
            main += [user("go on"), ask([*main, user("go on")])]
            branch = ask([*main[:-2], user("or rather")])
            helper += [user(branch["content"]), ask([*helper, user(branch["content"])])]
            short = ask([{"role": "system", "content": "In short."}, *main[-3:], user("and?")])
            return short["content"]
"""


HOSTILE = """
    import json, os, socket, threading, urllib.request

    host, port = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
    held = []

    def hold():
        while len(held) < 300:
            try:
                held.append(socket.create_connection((host, int(port)), 5))
            except OSError:
                return

    def flood(n):
        body = json.dumps({"messages": [{"role": "user", "content": "x" * 20000}], "max_tokens": \
1, "seed": n})
        for key in (os.environ["OPENAI_API_KEY"], "rollq-guessed"):
            try:
                head = {"Authorization": "Bearer " + key}
                url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
                urllib.request.urlopen(urllib.request.Request(url, body.encode(), head), \
timeout=20).read()
            except OSError:
                pass

    hold()
    threads = [threading.Thread(target=flood, args=(n,), daemon=True) for n in range(100)]
    [thread.start() for thread in threads]
    [thread.join(20) for thread in threads]
    while True:
        print("x" * 100000)
"""


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> str:
    """The example's name. Workers that are started know its file."""
    monkeypatch.delenv(FILES.variable, raising=False)
    monkeypatch.setenv(FILES.variable, "")
    return add_file(EXAMPLE)


def requests_by_job(calls: list[dict[str, Any]]) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Ids of prompts and replies by job."""
    found: dict[str, list[tuple[list[int], list[int]]]] = {}
    for call in calls:
        job = call["request"]["rid"].rpartition("/")[0]
        found.setdefault(job, []).append(
            (call["request"]["input_ids"], call["reply"]["output_ids"])
        )
    return found


def check_traces(line: dict[str, Any], exchanges: list[tuple[list[int], list[int]]]) -> None:
    """Each reply of the engine is in one trace, right behind what was sent for it, and nothing else
    is trained.
    """
    start, sampled = 0, 0
    traces = []
    for length in line["traces"]:
        traces.append(
            (line["tokens"][start : start + length], line["mask"][start : start + length])
        )
        start += length
    for sent, said in exchanges:
        end = len(sent) + len(said)
        homes = [
            mask
            for tokens, mask in traces
            if tokens[:end] == sent + said
            and all(mask[len(sent) : end])
            and not (mask[len(sent) - 1])
        ]
        assert len(homes) == 1
        sampled += len(said)
    assert sampled == sum(line["mask"])


@pytest.mark.parametrize(
    "framework",
    [
        "openai",
        pytest.param("anthropic", marks=pytest.mark.packages),
        pytest.param("langgraph", marks=pytest.mark.packages),
    ],
)
def test_tokens_are_what_was_sent_and_returned(stack: Stack, agent: str, framework: str) -> None:
    if framework != "openai":
        agent = add_file(f"{REPO / f'examples/agents/{framework}_agent.py'}:play")
    stack.engine("--mistakes", "0.5", "--seed", "3")
    lines, seen = play(stack, "shop", "train", range(4), 2, agent=agent)
    assert len(lines) == 8
    check(lines, seen)
    assert {line["stop"] for line in lines} == {"done"}
    assert sum(line["reward"] for line in lines) > 0


def test_each_reply_of_a_branching_agent_is_trained_once(
    stack: Stack, agent: str, tmp_path: Path
) -> None:
    path = tmp_path / "branching.py"
    path.write_text(textwrap.dedent(BRANCHING))
    branching = add_file(f"{path}:play")
    stack.engine("--mistakes", "0.5")
    lines, seen = play(stack, "shop", "train", range(2), 2, agent=branching)
    assert len(lines) == 4
    for line in lines:
        exchanges = [
            (request["input_ids"], reply["output_ids"]) for request, reply in seen[line["job"]]
        ]
        assert len(line["traces"]) == 4
        check_traces(line, exchanges)


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGKILL, marks=pytest.mark.promise), signal.SIGTERM]
)
def test_another_worker_goes_on(stack: Stack, agent: str, how: signal.Signals) -> None:
    stack.engine("--latency", "0.4")
    with recording(stack.engine_url, stack.folder / "calls.jsonl") as proxy:
        first = stack.worker(8, engine_url=proxy.url)
        with Client(stack.redis_url, run="r") as client:
            client.submit([Job(env="shop", task=task, size=2, agent=agent) for task in range(2)])
            client.seal()
            stack.wait(lambda: len(proxy.calls()) > 10, 150, "some turns")
            if how is signal.SIGKILL:
                first.kill()
            else:
                stop(first)
            stack.worker(8, engine_url=proxy.url)
            lines = []
            for batch in client.batches(groups=2, timeout=150):
                lines += [record(t) for t in batch.trajectories]
                batch.ack()
            stats = client.stats()
        seen = requests_by_job(proxy.calls())
    assert (len(lines), stats["dead"]) == (4, 0)
    assert stats["resumed"] >= 2  # of the others, no turn had ended
    assert "agent" not in stats["failures"]
    for line in lines:
        assert (line["stop"], line["reward"], len(line["traces"])) == ("done", 1.0, 1)
        turns = {tuple(sent) for sent, _ in seen[line["job"]]}
        again = len(seen[line["job"]]) - len(turns)
        assert again <= 1  # the turn in flight at the most; the journal answered the others


def test_a_crashed_agent_costs_its_own_jobs_and_is_quoted(
    stack: Stack, agent: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.sh"
    path.write_text("echo a last word >&2; exit 3\n")
    broken = add_file(str(path))
    stack.engine()
    stack.worker(8)
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(env="shop", task=0, size=2, agent=broken, min_viable=1)])
        client.submit([Job(env="shop", task=1, size=2, agent=agent)])
        client.seal()
        [batch] = client.batches(groups=1, timeout=150)
        assert [t.reward for t in batch.trajectories] == [1.0, 1.0]
        batch.ack()
        stats = client.stats()
    assert (stats["dead"], stats["failures"]) == (2, {"agent": 6})
    shown = stack.run("show", "r/shop.train.0/0")
    assert "exited with 3" in shown.stdout
    assert "a last word" in shown.stdout


def test_neighbours_of_a_hostile_agent_are_unharmed(
    stack: Stack, agent: str, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.py"
    path.write_text(textwrap.dedent(HOSTILE))
    hostile = add_file(str(path))
    stack.engine()
    worker = stack.worker(8)
    with Client(stack.redis_url, run="r") as client:
        client.submit(
            [Job(env="shop", task=0, size=2, agent=hostile, budget=Budget(deadline_s=15))]
        )
        stack.wait(lambda: client.stats()["leased"] == 2, 60, "the hostile agents")
        client.submit([Job(env="shop", task=task, size=2, agent=agent) for task in range(1, 4)])
        client.seal()
        [batch] = client.batches(groups=3, timeout=150)
        assert [t.reward for t in batch.trajectories] == [1.0] * 6
        batch.ack()
        stack.wait(
            lambda: client.stats()["failures"].get("agent", 0) > 0,
            150,
            "the deadline of the hostile ones",
        )
    assert worker.poll() is None
