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
        ({"job": "r/g/0"}, "it has no 'tokens'"),
        (record(mask=[0] * 15), "its lengths differ: 16 tokens, 15 mask"),
        (record(mask=16), "'int' object is not iterable"),
        (record(traces=[8, 9]), "its traces [8, 9] do not make up its 16 tokens"),
        (record(mask=[0] * 15 + [2]), "more than 0 and 1"),
        (record(mask=[1] * 16), "token 0 opens a trace and was sampled"),
        (record(pieces=[[5, "stop"], [3, "stop"]]), "its pieces do not make up its 8 sampled tokens, turn by turn"),
        (record(pieces=[[8, "stop"]]), "turn by turn"),
        (record(pieces=[[-1, "stop"], [9, "stop"]]), "turn by turn"),
        (record(pieces=[[4, "stop"], [4, "stop"], [0, "abort"]]), "turn by turn"),
        (record(pieces=[["4", "stop"], [4, "stop"]]), "turn by turn"),
        (record(tokens=[-1] * 16), "not an exported trajectory"),
        (record(logprobs=[float("nan")] * 16), "token 5 was sampled, with logprob nan"),
        (record(sampling={"temperature": "hot"}), "not an exported trajectory"),
        (record(messages=[{"role": "user", "content": ["hello"]}]), "not an exported trajectory"),
        (record(sampling={"temperature": float("inf")}), "temperature is inf"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: object, said: str) -> None:
    path = write_file(tmp_path, record(), text)
    with pytest.raises(ContractError, match=r"x\.jsonl:2") as caught:
        list(read(path))
    assert said in str(caught.value)
