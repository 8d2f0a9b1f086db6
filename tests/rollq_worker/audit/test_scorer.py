"""The audit's requests against engines that misbehave; how it gets on with a real one is in tests/contract."""

import json
import math
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.errors import EngineFailure
from rollq_worker.audit import scorer as scorer_module
from rollq_worker.audit.scorer import Refused, Scorer
from tests.conftest import free_port
from tests.rollq_worker.engine.engines import Scripted, reply, scripted

IDS = array("I", [5, 6, 7, 8])
MODEL = {"model_info": (200, {"weight_version": "v1"}), "server_info": (200, {"max_req_input_len": 90})}


def scores(body: dict[str, Any], **meta: Any) -> dict[str, Any]:
    start = body["logprob_start_len"]
    entries = [[None if i == start else -0.5, body["input_ids"][i], None] for i in range(start, len(body["input_ids"]))]
    return {"output_ids": [], "meta_info": {"weight_version": "v1", "input_token_logprobs": entries, **meta}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer_module, "BUSY_S", (0.01, 0.01))


@pytest.fixture
def engine() -> Iterator[Scripted]:
    with scripted(**MODEL) as script:
        yield script


def connected(engine: Scripted) -> Scorer:
    return Scorer(engine.url, 2)


def test_a_score(engine: Scripted) -> None:
    engine.answers = [scores]
    scorer = connected(engine)
    assert (scorer.version, scorer.longest) == ("v1", 89)
    found = scorer.score(IDS, 1)
    assert list(found.logprobs) == [-0.5, -0.5] and found.likeliest is None
    (sent,) = engine.bodies()
    assert sent["input_ids"] == [5, 6, 7, 8] and sent["sampling_params"] == {"max_new_tokens": 0}
    assert (sent["return_logprob"], sent["logprob_start_len"], "top_logprobs_num" in sent) == (True, 1, False)
    scorer.close()


def test_the_likeliest_tokens(engine: Scripted) -> None:
    tops = [None, [[-0.1, 7, None], [-2.4, 5, None]], [[-0.2, 8, None]]]
    engine.answers = [lambda body: scores(body, input_top_logprobs=tops)]
    assert connected(engine).score(IDS, 1, likeliest=2).likeliest == [[-0.1, -2.4], [-0.2]]
    assert engine.bodies()[0]["top_logprobs_num"] == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {"error": "no key"}), "answered 401: no key"),
        ((500, {"error": {"message": "broken"}}), "answered 500: broken"),
        ((200, []), "not a scoring reply"),
        ((200, b"[" * 100_000), "not a scoring reply"),
        (lambda body: scores(body, input_token_logprobs=[[None, 6], [math.nan, 7], [-1, 8]]), "is not finite"),
        ((200, {"meta_info": {}}), "not a scoring reply"),
        (lambda body: scores({**body, "input_ids": [5, 6, 7, 9]}), "are not those of the 3 ids sent"),
        (lambda body: scores({**body, "logprob_start_len": 2}), "the 2 logprobs are not those of the 3"),
        (lambda body: scores(body, weight_version="v2"), "by weights 'v1', another by 'v2'"),
        (lambda body: scores(body, input_top_logprobs=[None]), "1 lists of likeliest tokens for 3"),
        ("reset", "or it broke"),
    ],
)
def test_what_ends_an_audit(engine: Scripted, answer: Any, said: str) -> None:
    engine.answers = [answer]
    with pytest.raises(EngineFailure) as caught:
        connected(engine).score(IDS, 1, likeliest=2)
    assert said in str(caught.value) and engine.url in str(caught.value)
    assert len(engine.bodies()) == 1  # what broke an engine is never sent again


def next_reply(*entries: Any, version: str = "v1") -> tuple[int, Any]:
    return 200, {"output_ids": [3], "meta_info": {"weight_version": version, "output_token_ids_logprobs": [entries]}}


def test_a_token_as_the_next_one(engine: Scripted) -> None:
    engine.answers = [next_reply([-0.25, 9, None])] * 2
    scorer = connected(engine)
    assert [scorer.next(IDS, 9, temperature=0.7) for _ in range(2)] == [-0.25] * 2
    bodies = engine.bodies()
    assert len({body.pop("extra_key") for body in bodies}) == 2  # nothing cached is used
    assert bodies[0] == {
        "input_ids": [5, 6, 7, 8],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.7},
        "return_logprob": True,
        "token_ids_logprob": [9],
    }


@pytest.mark.parametrize(
    "answer",
    [
        next_reply(),
        next_reply([-0.25, 8, None]),
        next_reply([None, 9, None]),
        next_reply([-1, 9], [-1, 9]),
        next_reply([-1, 9], version="v2"),
        (200, {"meta_info": {"weight_version": "v1", "output_token_ids_logprobs": 5}}),
        (500, b"oh"),
        "reset",
    ],
)
def test_a_next_token_that_is_none(engine: Scripted, answer: Any) -> None:
    engine.answers = [answer]
    with pytest.raises(EngineFailure, match=engine.url):
        connected(engine).next(IDS, 9, temperature=1.0)


def test_an_engine_that_cannot_score_a_next_token(engine: Scripted) -> None:
    engine.answers = [(200, reply([3]))]
    with pytest.raises(Refused, match="does not score"):
        connected(engine).next(IDS, 9, temperature=1.0)


def test_a_refusal_is_told_apart(engine: Scripted) -> None:
    engine.answers = [(400, {"error": {"message": "too long"}})]
    with pytest.raises(Refused, match="too long"):
        connected(engine).score(IDS, 1)


def test_a_full_queue_is_waited_for_and_not_for_ever(engine: Scripted) -> None:
    full = (503, {"object": "error", "message": "The request queue is full.", "code": 503})
    engine.answers = [full, full, scores]
    assert len(connected(engine).score(IDS, 1).logprobs) == 2
    engine.answers = [full] * 3
    with pytest.raises(EngineFailure, match="queue is full"):
        connected(engine).score(IDS, 1)


def test_nobody_there() -> None:
    with pytest.raises(EngineFailure, match="no engine at http"):
        Scorer(f"http://127.0.0.1:{free_port()}", 1)


def test_a_router_says_what_one_of_its_servers_has(engine: Scripted) -> None:
    engine.paths["/get_model_info"] = engine.paths.pop("/model_info")
    assert connected(engine).version == "v1"


def test_which_ids_the_engine_knows(engine: Scripted) -> None:
    engine.paths["/detokenize"] = (200, {"text": ["a", "b", "", "c", ""]})
    assert connected(engine).known([9, 3, 5, 3, 7, 11]) == 10
    assert engine.bodies("/detokenize")[0]["tokens"] == [[3], [5], [7], [9], [11]]
    engine.paths["/detokenize"] = (200, {"text": "abc"})
    assert connected(engine).known([9]) is None
    del engine.paths["/detokenize"]
    assert connected(engine).known([9]) is None


class TestCommand:
    """`rollq audit` with an engine that says what the test wants."""

    LINE = {  # noqa: RUF012
        "job": "r/g/0",
        "tokens": [5, 6, 7, 8],
        "mask": [0, 0, 1, 1],
        "logprobs": [0.0, 0.0, -0.5, -0.5],
        "versions": [None, None, "v1", "v1"],
        "traces": [4],
        "sampling": {},
    }

    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.delenv("ROLLQ_TOKENIZER", raising=False)
        return self.write(tmp_path / "x.jsonl")

    def write(self, path: Path, **changes: Any) -> Path:
        path.write_text(json.dumps({**self.LINE, **changes}) + "\n")
        return path

    def test_a_good_file(self, engine: Scripted, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        engine.answers = [scores, scores]
        assert cli.main(["audit", str(file), "--engine", engine.url]) == 0
        shown = capsys.readouterr().out
        assert "r/g/0" in shown and shown.rstrip().endswith("verdict: ok")
        assert cli.main(["audit", str(file), "--engine", engine.url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found) == (
            "trajectories tokens skipped mean_abs p99_abs max_abs max_abs_prefill revised shift worst verdict".split()
        )
        assert (found["trajectories"], found["tokens"], found["mean_abs"], found["verdict"]) == (1, 2, 0.0, "ok")

    def test_a_bad_one(self, engine: Scripted, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        engine.answers = [scores]
        self.write(file, logprobs=[0.0, 0.0, -0.9, -0.5])
        assert cli.main(["audit", str(file), "--engine", engine.url]) == 1
        shown = capsys.readouterr().out
        assert "recorded -0.9000, scored -0.5000\n" in shown and "verdict: bad; the mean difference is 0.20" in shown

    def test_a_token_that_was_rounded_the_other_way(
        self, engine: Scripted, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        n = 60
        logprobs = [0.0] * 2 + [-0.5] * (n - 1) + [-0.56]
        columns = {"tokens": [5] * 2 + [7] * n, "mask": [0] * 2 + [1] * n, "versions": [None] * 2 + ["v1"] * n}
        self.write(file, **columns, logprobs=logprobs, traces=[n + 2])
        engine.answers = [scores, next_reply([-0.555, 7, None])]
        assert cli.main(["audit", str(file), "--engine", engine.url]) == 0
        shown = capsys.readouterr().out
        assert "recorded -0.5600, scored -0.5000, decoded -0.5550\n" in shown
        assert "revised: decoding gives what was recorded for 1 of the worst tokens; " in shown
        assert "largest difference then 0.005000, by prefill 0.060000" in shown and len(engine.bodies()) == 2

    def test_weights_by_another_name(self, engine: Scripted, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.write(file, versions=[None, None, "step-4", "step-4"])
        assert cli.main(["audit", str(file), "--engine", engine.url]) == 1
        shown = capsys.readouterr().out
        assert "skipped: 2 tokens sampled by other weights" in shown and "verdict: incomplete; 0 of 2" in shown
        assert not engine.bodies()
        engine.answers = [scores]
        assert cli.main(["audit", str(file), "--engine", engine.url, "--versions", "step-3,step-4"]) == 0

    def test_an_engine_that_does_not_say(
        self, engine: Scripted, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        del engine.paths["/model_info"]
        assert cli.main(["audit", str(file), "--engine", engine.url]) == 2
        assert "name them with --versions" in capsys.readouterr().err

    def test_an_id_that_nobody_knows_is_not_sent(
        self, engine: Scripted, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.write(file, tokens=[5, 400000, 7, 8])
        assert cli.main(["audit", str(file), "--engine", engine.url]) == 1
        assert "holds token id 400000, which the tokenizer of rollq does not know" in capsys.readouterr().err
        assert not engine.bodies()
        self.write(file, tokens=[5, 6, 400000, 8])  # a model's padding id may well be sampled
        assert cli.main(["audit", str(file), "--engine", engine.url]) == 1
        assert "2 tokens in a trace with an id beyond the vocabulary" in capsys.readouterr().out
        assert not engine.bodies()

    def test_an_engine_that_breaks(self, engine: Scripted, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file.write_text(file.read_text() * 3)
        engine.answers = [scores, scores, "reset"]
        assert cli.main(["audit", str(file), "--engine", engine.url, "-c", "1"]) == 1
        captured = capsys.readouterr()
        assert "or it broke" in captured.err and "2 of 3 trajectories were scored" in captured.err
        assert captured.out.count("r/g/0") == 2 and "verdict" not in captured.out

    @pytest.mark.parametrize(
        ("content", "code", "said"),
        [
            (b"", 1, "holds no trajectory"),
            (b"hello\n", 1, "x.jsonl:1 is not a line of JSON"),
            (b"\x1f\x8b\x08 and so on", 1, "gzip -d it first"),
            (b'{"job": 5}\n', 1, "x.jsonl:1 is not an exported trajectory"),
        ],
    )
    def test_a_file_that_is_none(
        self, engine: Scripted, file: Path, content: bytes, code: int, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file.write_bytes(content)
        assert cli.main(["audit", str(file), "--engine", engine.url]) == code
        captured = capsys.readouterr()
        assert said in captured.err and not captured.out and not engine.seen

    def test_what_can_be_read_once_only(
        self, engine: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        os.mkfifo(pipe := tmp_path / "pipe")
        for path in (pipe, tmp_path):
            assert cli.main(["audit", str(path), "--engine", engine.url]) == 2
            assert "it must be a file" in capsys.readouterr().err

    def test_an_engine_that_is_away(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["audit", str(file), "--engine", f"http://127.0.0.1:{free_port()}"]) == 1
        assert "no engine at" in capsys.readouterr().err

    def test_no_file(self, engine: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["audit", str(tmp_path / "none.jsonl"), "--engine", engine.url]) == 2
        assert "cannot read" in capsys.readouterr().err
        assert not engine.seen
