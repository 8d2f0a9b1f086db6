"""The audit of rollouts of a pretrained model on a real SGLang server: 30 layers in bf16, whose decoding and prefill
differ by 0.04 on average."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollq.export.record import record
from rollq.job import Budget, Job
from rollq_worker.audit.comparison import Auditor
from rollq_worker.audit.exported_file import ExportedTrajectory, read
from rollq_worker.audit.floor import Floor, turns_to_decode
from rollq_worker.audit.report import Report
from rollq_worker.audit.scorer import Scorer
from rollq_worker.environments.files import add_file
from tests.contract.conftest import Server
from tests.contract.interrupted_episodes import recorded_engine
from tests.rollq_worker.audit.simulation import off, shifted, wrong_weights

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1200)]

QUESTIONS = ("What is the capital of France?", "Write a poem about the sea.", "How do plants grow?", "Who was Hamlet?")
TOKENS = 32
AT_ONCE = 16


@pytest.fixture(scope="module")
def rollouts(pretrained_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight, as `rollq pull` exports them."""
    folder = tmp_path_factory.mktemp("rollouts")
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"prompt": text, "answer": "?"}) + "\n" for text in QUESTIONS))
    env, budget = add_file(f"{questions}:exact"), Budget(max_new_tokens=TOKENS)
    jobs = [Job(run="r", group=f"g{i}", env=env, task=i % 4, budget=budget) for i in range(8)]
    with recorded_engine(pretrained_server, folder) as playing, ThreadPoolExecutor(len(jobs)) as pool:
        trajectories = list(pool.map(playing.play, jobs))
    (file := folder / "x.jsonl").write_text("".join(json.dumps(record(t)) + "\n" for t in trajectories))
    return file


@pytest.fixture(scope="module")
def auditor(pretrained_server: Server) -> Iterator[Auditor]:
    scorer = Scorer(pretrained_server.url, AT_ONCE)
    yield Auditor(scorer, frozenset(["default"]), pretrained_server.tokenizer.vocab_size)
    scorer.close()


@pytest.fixture(scope="module")
def floor(auditor: Auditor, rollouts: Path) -> Floor:
    file = list(read(rollouts))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return Floor(pool.map(lambda turn: auditor.audit_again(*turn), turns_to_decode(file, len(file))))


def audited(auditor: Auditor, floor: Floor, file: list[ExportedTrajectory]) -> Report:
    report = Report(floor)
    for trajectory in file:
        report.add(auditor.audit(trajectory, floor.outlier))
    return report


def test_correct_rollouts_are_good(auditor: Auditor, floor: Floor, rollouts: Path) -> None:
    found = audited(auditor, floor, list(read(rollouts))).as_json()
    assert (found["verdict"], found["shift"], found["skipped"]) == ("ok", 0, 0)
    assert 0.02 < found["floor"]["mean_abs"] < 0.08 and 0.02 < found["mean_abs"] < 0.08
    assert found["detectable"]["outliers"]["trajectory"]["least"] <= 8


def sampled(t: ExportedTrajectory) -> list[int]:
    return [i for i, bit in enumerate(t.mask) if bit]


FAULTS: dict[str, tuple[int, Callable[[ExportedTrajectory], Any]]] = {
    "one trajectory is one token late": (1, shifted),
    "the first token of each turn is off by 0.5": (8, lambda t: off(t, sampled(t)[:1], 0.5)),
    "other weights": (8, wrong_weights),
}
"""In how many of the trajectories."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_the_noise(auditor: Auditor, floor: Floor, rollouts: Path, name: str) -> None:
    count, plant = FAULTS[name]
    file = list(read(rollouts))
    for trajectory in file[:count]:
        plant(trajectory)
    assert audited(auditor, floor, file).verdict == "bad"
