"""Exported files that cannot be audited are refused."""

import gzip
import json
from pathlib import Path

import pytest

from rollq.errors import ContractError
from rollq_worker.audit.exported_file import read
from tests.rollq_worker.audit.exported import record, write_file


def test_a_compressed_file_says_so(tmp_path: Path) -> None:
    (path := tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps(record()).encode()))
    with pytest.raises(ContractError, match=r"gzip -d it first"):
        list(read(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "x.jsonl:2 is not a line of JSON"),
        ("[]", "not an exported trajectory but a list"),
        ({"job": "r/g/0"}, "it is not an exported trajectory"),
        (record(logprobs=[0.0] * 15), "its lengths differ: 16 tokens, 16 mask, 15 logprobs"),
        (record(pieces=[[8, "stop"]]), "its pieces end at"),
        (record(sampling={"temperature": "hot"}), "could not convert string to float: 'hot'"),
        (record(sampling={"temperature": float("inf")}), "temperature is inf"),
        (record(sampling={"temperature": 10**400}), "too large"),
        (record(logprobs=[0.0] * 8 + [10**400] + [0.0] * 7), "is not a finite number"),
        ({**record(), "pieces": None}, "pieces"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: object, said: str) -> None:
    path = write_file(tmp_path, record(), text)
    with pytest.raises(ContractError, match=r"x\.jsonl:2") as caught:
        list(read(path))
    assert said in str(caught.value)


TAUGHT = record(
    teachers={"math": {"model": "large"}, "ours": {"adapter": "math@3"}, "told": {"prefix": "x"}},
    info={"teacher_versions": {"math": "v7", "ours": "math@3", "told": "v7"}},
)
TAUGHT["teacher_logprobs"] = {
    name: [-0.5 * m for m in TAUGHT["mask"]] for name in TAUGHT["teachers"]
}


@pytest.mark.parametrize(
    ("teacher", "adapter", "version"), [("math", "", "v7"), ("ours", "math", "3")]
)
def test_a_teacher_is_read_as_if_it_had_sampled(
    tmp_path: Path, teacher: str, adapter: str, version: str
) -> None:
    line = {**TAUGHT, "sampling": {"temperature": 0.7, "top_p": 0.9}}
    [read_as] = read(write_file(tmp_path, line), teacher)
    assert list(read_as.logprobs) == TAUGHT["teacher_logprobs"][teacher]
    assert {read_as.versions[i] for i, m in enumerate(read_as.mask) if m} == {version}
    assert {*read_as.adapters} == {adapter} and not read_as.sampling
    assert {c.temperature for c in read_as.conditions.values()} == {1.0}


@pytest.mark.parametrize(
    ("teacher", "change", "says"),
    [
        ("code", {}, "no logprobs of a teacher 'code'; there are math, ours, told"),
        ("told", {}, "a prefix"),
        ("math", {"info": {}}, "no weight version of the teacher 'math'"),
        ("math", {"info": {"teacher_versions": 7}}, "no weight version of the teacher 'math'"),
    ],
)
def test_a_teacher_that_cannot_be_audited_is_named(
    tmp_path: Path, teacher: str, change: dict[str, object], says: str
) -> None:
    with pytest.raises(ContractError, match=rf"x\.jsonl:1: .*{says}"):
        list(read(write_file(tmp_path, {**TAUGHT, **change}), teacher))


def test_an_episode_in_which_nothing_was_sampled_ends_no_audit(tmp_path: Path) -> None:
    empty = record(
        teachers=TAUGHT["teachers"],
        tokens=[1, 2],
        mask=[0, 0],
        logprobs=[0.0, 0.0],
        versions=[None, None],
        traces=[2],
        pieces=[],
        turns=0,
        turn_rewards=[],
    )
    path = write_file(tmp_path, TAUGHT, empty)
    assert [each.sampled for each in read(path, "math")] == [TAUGHT["mask"].count(1), 0]
