"""The exported form: what a line holds, and that the audit can read it back."""

import json
from dataclasses import replace
from pathlib import Path

from rollq.export.record import record
from rollq_worker.audit.exported_file import read
from tests.rollq.samples import job, trajectory


def test_a_line_says_how_its_tokens_were_sampled(tmp_path: Path):
    sampling = {"temperature": 0.7, "repetition_penalty": 1.1}
    line = record(trajectory(of=job(sampling=sampling)))
    assert line["sampling"] == sampling
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.job, *[*found.conditions.values()][0]) == ("r/g/0", 0.7, "repetition_penalty")
    assert found.tokens.tolist() == line["tokens"] and list(found.mask) == line["mask"]


def test_a_line_has_the_job_s_labels_and_queue() -> None:
    labels = {"uid": "a-7", "index": 12, "where": {"shard": [1, 2]}}
    line = json.loads(json.dumps(record(trajectory(of=job(labels=labels, queue="large")))))
    assert (line["labels"], line["queue"]) == (labels, "large")
    line = record(trajectory())
    assert (line["labels"], line["queue"]) == ({}, "rollq")


def test_a_line_has_the_arguments_that_the_template_was_given() -> None:
    made = trajectory()
    assert "template_kwargs" not in record(made)
    kwargs = {"enable_thinking": False, "preserve_thinking": True}
    assert record(replace(made, header=replace(made.header, template_kwargs=kwargs)))["template_kwargs"] == kwargs


def test_a_file_without_sampling_parameters_was_sampled_with_the_engines_own(tmp_path: Path):
    line = record(trajectory())
    del line["sampling"], line["traces"]
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.temperature, found.incomparable, found.traces) == (1.0, "", [len(line["tokens"])])
