"""The jobs of a group from the one body that the ledger keeps of it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import ContractError
from rollq.job import Job
from rollq.ledger.records import sample_of
from rollq.wire.codec import encode_job
from tests.rollq.samples import job

BODIES = [
    encode_job(job(0, size=3)),
    encode_job(job(1, size=3, task=7)),
    encode_job(job(0, "h")),
    b"no job",
]
IDS = ["r/g/0", "r/g/1", "r/g/2", "r/g/3", "r/h/0", "r/h/1"]


@given(st.lists(st.tuples(st.sampled_from(BODIES), st.sampled_from(IDS))))
def test_what_was_read_before_changes_no_job(wanted: list[tuple[bytes, str]]) -> None:
    read: dict[bytes, Job] = {}
    for body, job_id in wanted:
        assert found(body, job_id, read) == found(body, job_id, None)


def found(body: bytes, job_id: str, read: dict[bytes, Job] | None) -> Job | str:
    try:
        return sample_of(body, job_id, read)
    except ContractError as e:
        return str(e)


def test_a_groups_body_is_decoded_once() -> None:
    first = job(0, size=3, labels={"row": 7})
    read: dict[bytes, Job] = {}
    jobs = [sample_of(encode_job(first), f"r/g/{sample}", read) for sample in range(3)]
    assert jobs == [replace(first, sample=sample) for sample in range(3)]
    assert jobs[2].labels is jobs[0].labels
