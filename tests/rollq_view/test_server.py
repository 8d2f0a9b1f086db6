"""What the server answers to whom, and that nothing that it sends can break a page."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollq import Client
from rollq.errors import FailureClass
from rollq.export.record import record
from rollq.ledger.ledger import Ledger
from rollq_view.exported import ExportedFile
from rollq_view.redis_place import RedisPlace
from rollq_view.server import HEADERS, POLICY, SCRIPTS, TOKEN, asset
from tests.rollq.samples import claim, group, job, play, reader, trajectory
from tests.rollq_view.hostile import ALL, WORDS, export, said_everywhere, write
from tests.rollq_view.served import Served, served

SECRET = "a-token-of-the-session"


@pytest.fixture
def of_file(tmp_path: Path) -> Iterator[Served]:
    path = export(tmp_path / "x.jsonl", trajectory(1.0), trajectory(0.0, of=job(1)))
    with served(ExportedFile(path)) as server:
        yield server


@pytest.fixture
def of_dead_job(redis_url: str, ledger: Ledger) -> Iterator[Served]:
    ledger.pin_budgets({FailureClass.JOB: 1})
    ledger.submit(group())
    ledger.fail("r/g/0", claim(ledger, "r/g/0").lease, FailureClass.JOB, "no")
    place = RedisPlace(ledger.redis, "redis://here", lambda run: Client(redis_url, run=run))
    with served(place, run="r", token=SECRET) as server:
        yield server


@pytest.mark.parametrize(
    "path", ["/", "/page/view.js", "/api/start", "/api/rollout?run=r&key=none", "/nothing"]
)
def test_every_answer_has_the_headers_that_keep_a_page_safe(of_file: Served, path: str) -> None:
    answer = of_file.ask(path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in POLICY and "script-src 'self'" in POLICY


def test_the_page_has_no_script_or_style_of_its_own_and_loads_only_its_files(
    of_file: Served,
) -> None:
    text = of_file.ask("/").text
    assert text.count("<script") == text.count('<script src="/page/') == len(SCRIPTS)
    assert (
        "<style" not in text
        and " style=" not in text
        and " onclick" not in text
        and "http" not in text
    )
    for name in SCRIPTS:
        assert of_file.ask(f"/page/{name}").text == asset(name)


def test_scripts_never_parse_html() -> None:
    for name in (*SCRIPTS, "single.js"):
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert forbidden not in asset(name), name


@pytest.mark.parametrize("name", ["..%2fserver.py", "single.js", "%2e%2e/rows.py", "index.html%00"])
def test_only_the_pages_own_files_are_served(of_file: Served, name: str) -> None:
    assert of_file.ask(f"/page/{name}").status == 404


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]:1",
            "",
            "[",
            "[::1",
        ),
        *(
            "evil@127.0.0.1",
            "127.0.0.1#.evil",
            "127.0.0.1/.evil",
            "127.0.0.1?.evil",
            "127.0.0.1:80:80",
        ),
    ],
)
def test_a_request_by_another_hosts_name_is_refused(of_file: Served, host: str) -> None:
    answer = of_file.ask("/api/start", Host=host)
    assert answer.status in (400, 421) and "x.jsonl" not in answer.text


def test_an_address_in_the_requests_line_does_not_hide_a_foreign_host(of_file: Served) -> None:
    for line, host in (
        ("http://127.0.0.1/api/start", "evil.example"),
        ("http://evil.example/api/start", "127.0.0.1"),
    ):
        assert of_file.ask(line, Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:5"])
def test_loopback_has_several_names_and_ports(of_file: Served, host: str) -> None:
    assert of_file.ask("/api/start", Host=host).status == 200


@pytest.mark.parametrize("hosts", [b"", b"Host: 127.0.0.1\r\nHost: evil\r\n"])
def test_a_request_with_no_host_or_two_is_refused_and_not_logged(
    of_file: Served, caplog: pytest.LogCaptureFixture, hosts: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", of_file.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")
        assert b" 400 " in connection.recv(1 << 16)
    assert caplog.text == ""


def test_rows_come_in_pages_sorted_and_filtered(of_file: Served) -> None:
    best = of_file.get("rollouts", run="r", sort="reward", descending=1, limit=1)
    assert (best["total"], [row["reward"] for row in best["rows"]]) == (2, [1.0])
    rest = of_file.get("rollouts", run="r", sort="reward", descending=1, offset=1)
    assert [row["reward"] for row in rest["rows"]] == [0.0]
    assert of_file.get("rollouts", run="r", reward="failed")["total"] == 1
    counts = of_file.get("run", run="r")
    assert (counts["rollouts"], counts["reward_mean"], counts["verdicts"]) == (
        2,
        0.5,
        {"solved": 1, "failed": 1},
    )
    [found] = of_file.get("groups", run="r", reward="failed")["groups"]
    assert len(found["members"]) == 2


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/rollouts", 400),
        ("/api/rollouts?run=r&limit=x", 404),
        ("/api/rollouts?run=%ff", 404),
        ("/api/rollout?run=r&key=none", 404),
        ("/api/rollout?run=r&key=r/g/0&attempt=x", 404),
        ("/api/none", 404),
    ],
)
def test_a_wrong_request_is_one_error_with_the_reason(
    of_file: Served, path: str, status: int
) -> None:
    answer = of_file.ask(path)
    assert (answer.status, set(answer.json)) == (status, {"error"})


def test_hostile_words_arrive_as_they_are_in_ascii(tmp_path: Path) -> None:
    with served(ExportedFile(export(tmp_path / "x.jsonl", said_everywhere()))) as server:
        answer = server.ask("/api/rollout?run=r&key=r/g/0")
        assert answer.text.isascii() and answer.headers["Content-Type"].startswith(
            "application/json"
        )
        assert {entry["text"] for entry in answer.json["entries"]} == {ALL, "Error: " + ALL}
        assert server.get("rollouts", run="r", text=WORDS[0])["rows"][0]["why"] == WORDS[0]


def test_nan_becomes_a_text(tmp_path: Path) -> None:
    broken = record(trajectory()) | {"reward": float("nan"), "info": {"score": float("inf")}}
    with served(ExportedFile(write(tmp_path / "x.jsonl", broken))) as server:
        assert server.get("rollouts", run="r")["rows"][0]["reward"] == "nan"
        assert (
            server.get("run", run="r")["reward_mean"]
            is server.get("runs")["runs"][0]["reward_mean"]
            is None
        )
        assert server.get("rollout", run="r", key="r/g/0")["reward"] == "nan"


def test_without_a_token_nothing_can_be_changed(ledger: Ledger) -> None:
    ledger.pin_budgets({FailureClass.JOB: 1})
    ledger.submit(group())
    ledger.fail("r/g/0", claim(ledger, "r/g/0").lease, FailureClass.JOB, "no")
    with served(RedisPlace(ledger.redis, "redis://here")) as server:
        for token in ("", SECRET):
            headers = {TOKEN: token, "Origin": server.url[:-1]}
            assert (
                server.ask("/api/requeue", "POST", {"run": "r", "job": "r/g/0"}, **headers).status
                == 403
            )
    assert reader(ledger).job("r/g/0").state == "dead"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong", ["token", "no token", "origin", "no origin", "null origin", "scheme", "get"]
)
def test_a_requeue_needs_the_token_and_the_pages_origin(
    of_dead_job: Served, ledger: Ledger, wrong: str
) -> None:
    own = of_dead_job.url[:-1]
    wrong_origins = {
        "origin": "http://evil.example",
        "no origin": "",
        "null origin": "null",
        "scheme": f"https{own[4:]}",
    }
    origin = wrong_origins.get(wrong, own)
    token = {"token": SECRET[:-1], "no token": ""}.get(wrong, SECRET)
    method = "GET" if wrong == "get" else "POST"
    body = {"run": "r", "job": "r/g/0"}
    answer = of_dead_job.ask("/api/requeue", method, body, **{TOKEN: token, "Origin": origin})
    assert answer.status == (405 if wrong == "get" else 403)
    assert reader(ledger).job("r/g/0").state == "dead"  # type: ignore[union-attr]


@pytest.mark.parametrize("body", ["[" * 60_000, "{", "[]", "null", '{"run": 1}', "\udcff"])
def test_a_requeue_that_cannot_be_read_is_one_error(of_dead_job: Served, body: str) -> None:
    headers = {TOKEN: SECRET, "Origin": of_dead_job.url[:-1]}
    answer = of_dead_job.ask(
        "/api/requeue", "POST", body.encode("utf-8", "surrogateescape"), **headers
    )
    assert (answer.status, set(answer.json)) == (400, {"error"})


def test_a_requeue_of_the_page_itself_plays_the_job_again(
    of_dead_job: Served, ledger: Ledger
) -> None:
    headers = {TOKEN: SECRET, "Origin": of_dead_job.url[:-1]}
    answer = of_dead_job.ask("/api/requeue", "POST", {"run": "r", "job": "r/g/0"}, **headers)
    assert (answer.status, answer.json) == (200, {"requeued": "r/g/0"})
    assert reader(ledger).job("r/g/0").state == "queued"  # type: ignore[union-attr]
    again = of_dead_job.ask("/api/requeue", "POST", {"run": "r", "job": "r/g/0"}, **headers)
    assert again.status == 503 and "cannot be requeued" in again.json["error"]


def test_no_page_has_a_secret(of_dead_job: Served, ledger: Ledger) -> None:
    texts = [
        of_dead_job.ask(path).text
        for path in ("/", "/api/start", "/api/runs", "/api/run?run=r", "/api/rollouts?run=r")
    ]
    assert not [text for text in texts if SECRET in text]
    assert json.loads(texts[1]) == {
        "title": "redis://here",
        "live": True,
        "run": "r",
        "actions": True,
    }


def test_a_run_in_redis_has_its_counts_and_a_lost_redis_is_named(ledger: Ledger) -> None:
    ledger.submit(group(labels={"key": "v"}))
    play(ledger, "r/g/0")
    place = RedisPlace(ledger.redis, "redis://here")
    with served(place) as server:
        [run] = server.get("runs")["runs"]
        assert (run["run"], run["rollouts"], run["queued"]) == ("r", 2, 1)
        facts = server.get("run", run="r")
        assert facts["states"] == {"done": 1, "queued": 1} and facts["workers"] == 0
        assert "no worker is alive" in facts["holdup"]
        page = server.get("rollout", run="r", key="r/g/0")
        assert page["reward"] == 1.0 and page["labels"] == {"key": "v"}
        assert server.ask("/api/rollout?run=r&key=r/g/7").status == 503
        assert server.ask("/api/run?run=other").status == 404
    assert place.listing("r").rows["r/g/0"].reward == 1.0
