"""Teachers on the real servers: scores against transformers' own, with the teacher's weights."""

import itertools
import json
import subprocess
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollq.teachers import top_ids_of, top_logprobs_of
from rollq.trajectory import Trajectory
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.fakes import FakeRenderer
from rollq_worker.teachers.scoring import score
from tests.contract.conftest import CACHE, VLLM_VENV, Server
from tests.rollq.token_rows import episode

pytestmark = pytest.mark.timeout(900)
TOP_K = 4
NOISE = 0.03, 0.3
"""Of a server in bf16 against 32 bits, in nats: the mean and the largest, at most."""
TRUTH = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
for ids in json.load(sys.stdin):
    ids = torch.tensor([ids])
    with torch.no_grad():
        rows = model(ids).logits[0, :-1].log_softmax(-1)
    own = rows.gather(1, ids[0, 1:, None])[:, 0]
    top = rows.topk(int(sys.argv[2]))
    print(json.dumps([own.tolist(), top.values.tolist()]))
"""


def truth(python: Path, model: Path, traces: list[list[int]]) -> list[Any]:
    """For each trace, in 32 bits: the logprob of each token behind the first, and the highest ones
    there.
    """
    command = [str(python), "-c", TRUTH, str(model), str(TOP_K)]
    done = subprocess.run(
        command, input=json.dumps(traces), capture_output=True, text=True, timeout=300, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(
    params=[
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("vllm", marks=pytest.mark.vllm),
    ]
)
def teacher(request: pytest.FixtureRequest) -> Iterator[tuple[EnginePool, Path, Path]]:
    """A pool with the server, a Python with its transformers, and the folder of its model."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    if request.param == "sglang":
        python, model = CACHE / "sglang/bin/python", server.get("/model_info").json()["model_path"]
    else:
        python, model = VLLM_VENV / "bin/python", server.get("/v1/models").json()["data"][0]["root"]
    tokenizer = server.tokenizer
    pool = EnginePool(
        [server.url], vocab_size=tokenizer.vocab_size, proof=VocabularyProof(tokenizer)
    )
    yield pool, python, Path(model)
    pool.close()


@contextmanager
def waiting(name: str, engine: Any) -> Iterator[Any]:
    yield lambda: None


def test_scores_are_the_log_softmax_of_the_teachers_weights(
    teacher: tuple[EnginePool, Path, Path],
) -> None:
    pool, python, model = teacher
    shape = [(30, [([20, 9], 12), ([15], 0)]), (7, [([40], 5)])]
    played = episode(shape, itertools.count(700))
    job = replace(played.job, teachers={"real": {"top_k": TOP_K}})
    scored: Trajectory = score(
        replace(played, job=job),
        engine_of=lambda _: pool,
        renderer_of=lambda _: FakeRenderer(),
        waiting=waiting,
    )
    traces = [[*segment.prompt_ids, *segment.response_ids] for segment in scored.segments()]
    differences, shifted = [], []
    for segment, (own, top) in zip(scored.segments(), truth(python, model, traces), strict=True):
        first = len(segment.prompt_ids) - 1
        scores = segment.teacher_logprobs["real"]
        highest = array("f", segment.scores[top_logprobs_of("real")].data)
        tops = zip(*[iter(highest)] * TOP_K, strict=True)
        for place, sampled in enumerate(segment.mask):
            if sampled:
                differences.append(abs(scores[place] - own[first + place]))
                shifted.append(abs(scores[place] - own[first + place - 1]))
                assert next(tops) == pytest.approx(top[first + place], abs=NOISE[1])
        assert len(segment.scores[top_ids_of("real")].data) == 4 * TOP_K * sum(segment.mask)
    mean = sum(differences) / len(differences)
    print(f"{len(differences)} tokens: mean {mean:.5f}, largest {max(differences):.4f} nats")
    assert len(differences) == 84 and mean < NOISE[0] and max(differences) < NOISE[1]
    assert sum(shifted) / len(shifted) > 20 * mean  # a shift would be seen
