"""New weights, adapters and audits on the real vLLM server. `make test-vllm`."""

import json
import re
import subprocess
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.errors import SyncError
from rollq.events import Finish
from rollq.weights import Fleet
from rollq_worker.audit.detection import open_scorer
from rollq_worker.audit.scorer import ScoringRefused
from rollq_worker.engine.client import EngineClient
from rollq_worker.protocols import Adapter, SampleRequest
from tests.contract.conftest import VLLM_VENV, Server
from tests.rollq_worker.audit.exported import record, write_file
from tests.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
GROUP = 4
RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} [1-9]", re.M)


def python(*arguments: str | Path) -> None:
    """Runs it where torch is."""
    subprocess.run([VLLM_VENV / "bin/python", *arguments], check=True)


@pytest.fixture(scope="module")
def model(vllm_server: Server) -> Path:
    return Path(vllm_server.get("/v1/models").json()["data"][0]["root"])


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with other weights."""
    folder = tmp_path_factory.mktemp("weights")
    python(Path(__file__).with_name("other_weights.py"), model, folder)
    return folder


@pytest.fixture
def fleet(vllm_server: Server, model: Path) -> Iterator[Fleet]:
    yield Fleet([vllm_server.url])
    Fleet([vllm_server.url]).update(model, f"end {time.time()}")


@pytest.fixture
def client(vllm_server: Server) -> Iterator[EngineClient]:
    stops = [vllm_server.tokenizer.added_tokens["<|im_end|>"]]
    engine = EngineClient(
        vllm_server.url, stop_ids=stops, vocab_size=vllm_server.tokenizer.vocab_size
    )
    yield engine
    engine.close()


def rollout(client: EngineClient, number: int, tokens: int, **sampling: Any) -> dict[str, Any]:
    """One turn after a short prompt, as a line of an exported file."""
    prompt = array("I", range(100 + number, 116 + number))
    sampling |= {"ignore_eos": True}
    generated = client.generate(
        SampleRequest(
            ids=prompt,
            sampling=sampling,
            max_new_tokens=tokens,
            key=f"r/g/{number}",
            check=lambda: None,
        )
    )
    assert len(generated.ids) == tokens or generated.finish is Finish.ABORT
    versions = [span.version for span in generated.versions for _ in range(span.end - span.start)]
    return record(
        job=f"r/g/{number}",
        tokens=[*prompt, *generated.ids],
        mask=[0] * len(prompt) + [1] * len(versions),
        logprobs=[0.0] * len(prompt) + list(generated.logprobs),
        versions=[None] * len(prompt) + versions,
        sampling=sampling,
    )


def rollouts(client: EngineClient, tokens: int, **sampling: Any) -> Iterator[dict[str, Any]]:
    """Those of a group, side by side; the iteration waits for them."""
    with ThreadPoolExecutor(GROUP) as pool:
        lines = [pool.submit(rollout, client, i, tokens, **sampling) for i in range(GROUP)]
        yield {}  # they have begun
        yield from (line.result(300) for line in lines)


def audit(
    file: Path, server: Server, capsys: pytest.CaptureFixture[str], *flags: str
) -> dict[str, Any]:
    capsys.readouterr()
    code = cli.main(["audit", str(file), "--engine", server.url, "--json", *flags])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code == 0) is (found["verdict"] == "ok")
    return found


@pytest.mark.parametrize(
    "mode", ["retract", pytest.param("in_place", marks=pytest.mark.slow), "abort"]
)
def test_a_sync_in_mid_run_names_the_version_of_each_token(
    vllm_server: Server,
    client: EngineClient,
    fleet: Fleet,
    other: Path,
    mode: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [before] = fleet.versions().values()
    running = rollouts(client, 400)
    next(running)
    until(lambda: RUNNING.search(vllm_server.get("/metrics").text), 60)
    time.sleep(0.5)  # for some tokens
    [done] = Fleet([vllm_server.url], pause=mode).update(other, mode)
    assert done.loaded and done.checksum and done.server.startswith("vLLM ")
    records = list(running)
    versions = [[name for name in each["versions"] if name] for each in records]
    names = [before, mode] if mode != "abort" else [before]
    assert {name for each in versions for name in each} == {*names}
    assert all(each == sorted(each, key=names.index) for each in versions)

    file = write_file(tmp_path, *records)
    found = audit(file, vllm_server, capsys, "--versions", f"{before},{mode}")
    assert found["verdict"] == "bad" and found["skipped"] == 0  # the older are of other weights
    if mode != "abort":
        found = audit(file, vllm_server, capsys)
        assert found["tokens"] == sum(each.count(mode) for each in versions)
        assert found["mean_abs"] < 0.01


def test_a_folder_that_it_does_not_see_and_the_way_back(
    vllm_server: Server, fleet: Fleet, model: Path
) -> None:
    [checksum] = [done.checksum for done in fleet.update(model, "good")]
    with pytest.raises(SyncError, match=r"update: HTTP 500 .*Repo id must"):
        fleet.update("/nowhere/at/all", "lost")
    assert vllm_server.get("/is_paused").json() == {"is_paused": True}
    [done] = fleet.update(model, "good")
    assert done.loaded and done.checksum == checksum
    assert [done.loaded for done in fleet.update(model, "good")] == [False]


def test_requests_that_come_during_a_transfer_wait(
    vllm_server: Server, fleet: Fleet, client: EngineClient
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with fleet.paused("sent"):
            body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}}
            reply = pool.submit(vllm_server.post, "/inference/v1/generate", body)
            time.sleep(0.5)
            assert not reply.done()
        spans = reply.result(60).json()["choices"][0]["weight_versions"]
    assert {span["version"] for span in spans} == {"sent"}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_an_audit_finds_logprobs_that_are_one_token_late(
    vllm_server: Server,
    client: EngineClient,
    temperature: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, *records = rollouts(client, 40, temperature=temperature)
    found = audit(write_file(tmp_path, *records), vllm_server, capsys)
    assert (found["verdict"], found["skipped"], found["shift"]) == ("ok", 0, 0)
    assert found["tokens"] == GROUP * 40
    for line in records:
        line["logprobs"] = line["logprobs"][:1] + line["logprobs"][:-1]
    assert audit(write_file(tmp_path, *records), vllm_server, capsys)["verdict"] == "bad"


def test_logprobs_of_a_cut_distribution_are_skipped(
    vllm_server: Server, client: EngineClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *records = rollouts(client, 10, top_k=2)
    assert max(max(line["logprobs"][16:]) for line in records) > -0.7
    assert audit(write_file(tmp_path, *records), vllm_server, capsys)["skipped"] == GROUP * 10


def test_a_version_of_an_adapter_is_served_scored_and_unloaded(
    vllm_server: Server, fleet: Fleet, model: Path, tmp_path: Path
) -> None:
    python(Path(__file__).with_name("tiny_adapters.py"), model, tmp_path)
    for version in ("1", "2", "2"):
        fleet.load_adapter("math", tmp_path / version, version)
    with pytest.raises(SyncError, match="No adapter found"):
        fleet.load_adapter("math", tmp_path / "none", "3")
    scorer = open_scorer(vllm_server.url)
    ids = vllm_server.tokenizer.encode("Where is my order?")
    first, second = Adapter("math", "1"), Adapter("math", "2")
    scores = [scorer.score(ids, 0, adapter=one).logprobs for one in (None, first, second)]
    assert all(a != b for a, b in zip(scores, scores[1:] + scores[:1], strict=True))
    assert fleet.unload_adapter("math", keep=["2"]) == {}
    with pytest.raises(ScoringRefused, match="--adapter math --path DIR --version 1` loads it"):
        scorer.score(ids, 0, adapter=first)
    assert scorer.score(ids, 0, adapter=second).logprobs == scores[2]
    fleet.unload_adapter("math", keep=[])
    scorer.close()
