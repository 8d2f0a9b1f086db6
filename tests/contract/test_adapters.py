"""LoRA adapters of a real SGLang server on a CPU: versions by name, and runs."""

import json
import subprocess
import textwrap
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from rollq import cli
from rollq.events import GRADED
from rollq.job import Budget, Job
from rollq.ledger.ledger import Ledger
from rollq.ledger.versions import Versions
from rollq.servers.connection import connect
from rollq.trajectory import Trajectory
from rollq.weights import Fleet
from rollq_worker.agents.known_agents import FILES, add_file
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.job_task import JobRunner
from rollq_worker.protocols import Adapter, Generated, SampleRequest, Scoring
from tests.contract.conftest import (
    Server,
    installed,
    sglang,
    sglang_scripts,
    wrapped,
)
from tests.contract.interrupted_episodes import write
from tests.contract.refusal_shapes import value_refusal
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import running
from tests.waiting import until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
FLAGS = (
    "--enable-lora --max-lora-rank 8 --lora-target-modules q_proj v_proj "
    "--lora-backend torch_native".split()
)
EPISODES = 8


@dataclass(frozen=True)
class Serving:
    server: Server
    folders: Path
    """Where the folders 1 and 2 of adapters are."""

    def load(self, name: str, folder: str) -> requests.Response:
        return self.server.post(
            "/load_lora_adapter", {"lora_name": name, "lora_path": str(self.folders / folder)}
        )

    def unload(self, name: str) -> requests.Response:
        return self.server.post("/unload_lora_adapter", {"lora_name": name})

    def listed(self) -> dict[str, str]:
        """Folders by name."""
        models = self.server.get("/v1/models").json()["data"]
        return {model["id"]: model["root"] for model in models if model["parent"]}

    def ask(self, name: str) -> requests.Response:
        body = {
            "input_ids": self.server.prompt(),
            "sampling_params": {"max_new_tokens": 2},
            "lora_path": name,
        }
        return self.server.post("/generate", body)


@pytest.fixture(scope="module")
def sglang_lora(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder, scripts = tmp_path_factory.mktemp("sglang_lora"), sglang_scripts()
    venv, model = installed(scripts)
    subprocess.run([venv / "bin/python", HERE / "tiny_adapters.py", model, folder], check=True)
    with sglang(scripts, wrapped(venv, folder), model, folder / "log", *FLAGS) as server:
        yield Serving(server, folder)


@pytest.fixture
def lora(sglang_lora: Serving) -> Iterator[Serving]:
    """A server without adapters; some may have been unloaded."""
    yield sglang_lora
    for name in sglang_lora.listed():
        sglang_lora.unload(name)


def refused(answer: requests.Response) -> str:
    body = answer.json()
    assert answer.status_code == 400 and body["success"] is False
    return str(body["error_message"])


def test_a_name_is_loaded_once(lora: Serving) -> None:
    answer = lora.load("once@1", "1")
    assert answer.status_code == 200 and answer.json()["success"] is True
    assert answer.json()["loaded_adapters"] == lora.listed() == {"once@1": str(lora.folders / "1")}
    for folder in ("1", "2"):
        assert refused(lora.load("once@1", folder)) == (
            "Failed to load LoRA adapter once@1 because it is already loaded"
        )
    assert "Repo id must be in the form" in refused(lora.load("once@2", "nothing"))
    assert lora.listed() == {"once@1": str(lora.folders / "1")}


def test_an_adapter_that_was_never_loaded(lora: Serving) -> None:
    assert value_refusal(lora.ask("never@1")).startswith(
        "Got LoRA adapter that has never been loaded: never@1\n"
    )
    assert refused(lora.unload("never@1")).startswith(
        "LoRA with name never@1 does not exist. Loaded LoRAs: "
    )


def test_a_request_loads_again_what_was_unloaded(lora: Serving) -> None:
    lora.load("again@1", "1")
    assert lora.unload("again@1").json()["loaded_adapters"] == lora.listed() == {}
    assert lora.ask("again@1").status_code == 200
    assert lora.listed() == {"again@1": str(lora.folders / "1")}
    assert "is already loaded" in refused(lora.load("again@1", "2"))


def test_a_reply_tells_the_version_of_the_model(lora: Serving) -> None:
    lora.load("told@7", "1")
    assert {
        span["version"] for span in lora.ask("told@7").json()["meta_info"]["weight_versions"]
    } == {"default"}


def test_an_engine_without_adapters_refuses_to_load_one(sglang_server: Server) -> None:
    answer = sglang_server.post(
        "/generate", {"input_ids": sglang_server.prompt(), "lora_path": "a@1"}
    )
    assert value_refusal(answer).startswith(
        "LoRA adapter 'a@1' was requested, but LoRA is not enabled."
    )
    answer = sglang_server.post("/load_lora_adapter", {"lora_name": "a@1", "lora_path": "/x"})
    assert refused(answer).startswith("LoRA is not enabled. Please set `--enable-lora`")


def submit(ledger: Ledger, adapter: str = "", **options: Any) -> list[str]:
    """Episodes of several turns, with sampling that the audit can repeat."""
    more: dict[str, Any] = {
        "budget": Budget(max_turns=4, max_new_tokens=200),
        "sampling": {"temperature": 1.0},
        **options,
    }
    jobs = [
        Job(
            run=ledger.run,
            group="g",
            sample=i,
            size=EPISODES,
            env="shop",
            task=1,
            adapter=adapter,
            **more,
        )
        for i in range(EPISODES)
    ]
    ledger.submit(jobs)
    return [job.id for job in jobs]


def sync(lora: Serving, ledger: Ledger, adapter: str, folder: str, step: int) -> None:
    Fleet([lora.server.url]).load_adapter(adapter, lora.folders / folder, str(step))
    Versions(ledger.redis, ledger.run).publish(step, str(step), f"token {step}")


GAME = """
    from openai import OpenAI

    def play(episode):
        told = {"red": list(episode.messages), "blue": list(episode.messages)}
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=600) as client:
            for player, other in (("red", "blue"), ("blue", "red")) * 2:
                reply = client.chat.completions.create(
                    model=player, messages=told[player], max_tokens=100
                )
                words = reply.choices[0].message.content or "nothing"
                told[player].append({"role": "assistant", "content": words})
                told[other].append({"role": "user", "content": words})
        return "over"
"""


def test_two_adapters_share_an_episode_and_each_trace_is_its_adapters(
    lora: Serving,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FILES.variable, "")
    file = tmp_path / "game.py"
    file.write_text(textwrap.dedent(GAME))
    models = {"red": {"adapter": "math"}, "blue": {"adapter": "code"}}
    with connect(redis_url) as client:
        ledger = Ledger(client, "both")
        with running(ledger, lora.server.url, lora.server.tokenizer) as runner:
            Fleet([lora.server.url]).load_adapter("code", lora.folders / "2", "0")
            sync(lora, ledger, "math", "1", 0)
            [job_id, *_] = submit(ledger, agent=add_file(f"{file}:play"), models=models)
            assert runner.run(job_id)["stop"] in GRADED
        played = reader(ledger).trajectory(job_id)
    assert {row.model for row in played.segments()} == {"red", "blue"}
    assert versions([played]) == {"0"}
    write(tmp_path / "both.jsonl", [played])
    found = audit(tmp_path / "both.jsonl", lora, capsys)
    assert (found["verdict"], found["skipped"]) == ("ok", 0), found
    assert found["tokens"] == played.sampled_tokens
    if lora.server.real:
        swapped = {"red": {"adapter": "code"}, "blue": {"adapter": "math"}}
        other = replace(played, job=replace(played.job, models=swapped))
        write(tmp_path / "swapped.jsonl", [other])
        assert audit(tmp_path / "swapped.jsonl", lora, capsys)["verdict"] == "bad"


def audit(file: Path, lora: Serving, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    cli.main(["audit", str(file), "--engine", lora.server.url, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def versions(trajectories: list[Trajectory]) -> set[str | None]:
    return {version for trajectory in trajectories for version in trajectory.versions} - {None}


def test_two_runs_are_sampled_by_their_published_versions_as_the_audit_proves(
    lora: Serving, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(redis_url) as client:
        math, code = Ledger(client, "math"), Ledger(client, "code")
        with (
            running(math, lora.server.url, lora.server.tokenizer) as runner,
            ThreadPoolExecutor(4) as pool,
        ):
            sync(lora, math, "math", "1", 0)
            sync(lora, code, "code", "2", 0)
            ids = [
                id
                for pair in zip(submit(math, "math"), submit(code, "code"), strict=True)
                for id in pair
            ]
            played = [pool.submit(JobRunner.run, runner, id) for id in ids]
            until(lambda: sum(job.done() for job in played) >= 4, 300)
            sync(lora, math, "math", "2", 1)  # in the middle of episodes
            assert {job.result(600)["stop"] for job in played} <= GRADED
        told = {}
        for ledger in (math, code):
            told[ledger.run] = [
                reader(ledger).trajectory(f"{ledger.run}/g/{i}") for i in range(EPISODES)
            ]
            write(tmp_path / f"{ledger.run}.jsonl", told[ledger.run])
    assert versions(told["math"]) == {"0", "1"} and versions(told["code"]) == {"0"}
    for run, trajectories in told.items():
        found = audit(tmp_path / f"{run}.jsonl", lora, capsys)
        assert (found["verdict"], found["shift"], found["skipped"]) == ("ok", 0, 0), found
        assert found["tokens"] == sum(t.sampled_tokens for t in trajectories)
    if lora.server.real:  # the replay engine's logprobs do not depend on adapters
        lora.unload("code@0")
        lora.load("code@0", "1")
        found = audit(tmp_path / "code.jsonl", lora, capsys)
        assert found["verdict"] == "bad" and found["mean_abs"] > 0.1, found


def test_a_teacher_may_be_an_adapter_of_the_same_engine(lora: Serving) -> None:
    """Its scores are the logprobs with which the adapter samples, and not the policy's."""
    for version in ("1", "2"):
        assert lora.load(f"taught@{version}", version).status_code == 200
    engine = EnginePool([lora.server.url])
    prompt = array("I", lora.server.prompt())

    def ask(ids: "array[int]", adapter: Adapter | None, **more: Any) -> Generated:
        request = SampleRequest(
            ids=ids,
            sampling={"ignore_eos": True},
            key="r/g/0",
            check=lambda: None,
            adapter=(lambda: adapter) if adapter else None,
            **{"max_new_tokens": 1, **more},
        )
        return engine.generate(request)

    sampled = ask(prompt, Adapter("taught", "2"), max_new_tokens=40)
    scoring = Scoring(start=len(prompt) - 1)
    differences = {}
    for adapter in (Adapter("taught", "2"), Adapter("taught", "1"), None):
        scores = ask(prompt + sampled.ids, adapter, scoring=scoring).scores
        assert scores is not None and len(scores.logprobs) == 40
        pairs = zip(scores.logprobs, sampled.logprobs, strict=True)
        differences[adapter] = max(abs(score - logprob) for score, logprob in pairs)
    engine.close()
    print(differences)
    assert (
        differences[Adapter("taught", "2")]
        < 0.1
        < min(differences[Adapter("taught", "1")], differences[None])
    )
