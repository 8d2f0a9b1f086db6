"""`rollq engines sync`: new weights on engines, and their version in a run."""

import json
import os
from pathlib import Path

import pytest

from rollq import Client, cli
from rollq.ledger.replies import Published
from rollq.ledger.workers.engine_addresses import add_address
from tests.conftest import free_port
from tests.ledger_of import ledger_of
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.weights.fake_engines import FakeEngine, serving

LINE = ("engines", "sync", "--path", "/weights/7", "--version", "v7")


def engine_flags(*urls: str) -> list[str]:
    return [word for url in urls for word in ("--engine", url)]


def test_the_version_is_published_when_all_engines_have_it(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--run", "r", "--step", "7", "--redis", redis_url]
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    with serving(FakeEngine(), FakeEngine()) as urls:
        assert cli.main([*LINE, *engine_flags(*urls), *run]) == 0
        said = capsys.readouterr()
        assert cli.main([*LINE, *engine_flags(*urls), *run]) == 0  # again
        again = capsys.readouterr().out
    assert all(
        f"{url}  loaded     paused 0." in said.out and f"{url}  unchanged" in again for url in urls
    )
    assert "version v7 on 2 of 2 engines\npublished: run r is at step 7\n" in said.out
    assert "2/2  " in said.err and f"{urls[0]} done" in said.err
    with Client(redis_url, run="r") as client:
        published = client.published()
    assert published and (published.step, published.weight_version) == (7, "v7")


def of_adapter(step: int, folder: str = "") -> list[str]:
    return [
        "engines",
        "sync",
        "--adapter",
        "math",
        "--path",
        folder or f"/a/{step}",
        "--version",
        f"v{step}",
    ]


def test_an_adapter_is_loaded_published_and_the_version_before_the_last_unloaded(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--run", "r", "--redis", redis_url, "--step"]
    assert cli.main([*SUBMIT, "--set", "adapter=math", "--redis", redis_url]) == 0
    with serving(engine := FakeEngine()) as urls:
        for step in (0, 1, 2):
            capsys.readouterr()
            assert cli.main([*of_adapter(step), *engine_flags(*urls), *run, str(step)]) == 0
        said = capsys.readouterr().out
        for other in ([], ["--adapter", "code"]):
            assert cli.main([*LINE, *other, *engine_flags(*urls), *run, "2"]) == 2
            assert (
                "run r is played with adapter math: name it with --adapter math"
                in capsys.readouterr().err
            )
    assert engine.adapters == {"math@v1": "/a/1", "math@v2": "/a/2"}
    assert (
        said == f"{urls[0]}  loaded\nversion v2 of adapter math on 1 of 1 engines\npublished: "
        "run r is at step 2\n"
    )
    with Client(redis_url, run="r") as client:
        assert client.published() == Published(2, "v2")


def test_a_step_back_unloads_what_was_trained_since_so_that_it_is_read_anew(redis_url: str) -> None:
    run = ["--run", "r", "--redis", redis_url, "--step"]
    with serving(engine := FakeEngine()) as urls:
        engine.adapters = {"math@v9": "/of an earlier sync, which failed elsewhere"}
        assert cli.main([*SUBMIT, "--set", "adapter=math", "--redis", redis_url]) == 0
        for step in (7, 8, 7):
            assert cli.main([*of_adapter(step), *engine_flags(*urls), *run, str(step)]) == 0
        assert engine.adapters == {"math@v7": "/a/7"}
        assert cli.main([*of_adapter(8, "/other/8"), *engine_flags(*urls), *run, "8"]) == 0
    assert engine.adapters == {"math@v7": "/a/7", "math@v8": "/other/8"}


def test_a_run_without_an_adapter_gets_none(redis_url: str, fails: Fails) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    with serving(engine := FakeEngine()) as urls:
        said = fails(
            *of_adapter(0), *engine_flags(*urls), "--run", "r", "--step", "0", "--redis", redis_url
        )
    assert "run r is played with adapter none: leave --adapter out, or use another run" in said
    assert engine.adapters == {}


def test_without_a_run_the_next_step_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeEngine()) as urls:
        assert cli.main([*LINE, *engine_flags(*urls)]) == 0
    assert capsys.readouterr().out.endswith(
        "next: rollq engines publish --run RUN --step K --version v7\n"
    )


def test_a_failed_engine_is_named_and_nothing_is_published(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    run = ["--run", "r", "--step", "7", "--redis", redis_url]
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    capsys.readouterr()
    with serving(engine := FakeEngine()) as urls:
        for more in ([], ["--json"]):
            assert cli.main([*LINE, *engine_flags(*urls, away), *run, *more]) == 1
            said = capsys.readouterr()
            assert f"rollq: 1 of 2 engines do not serve version 'v7': {away} (" in said.err
            if more:
                found = json.loads(said.out.splitlines()[-1])
                assert [one["url"] for one in found["engines"]] == urls and list(
                    found["failed"]
                ) == [away]
                assert found["published"] is None
            else:
                assert f"{away}  failed\nversion v7 on 1 of 2 engines\n" in said.out
    assert engine.version == "v7"
    with Client(redis_url, run="r") as client:
        assert client.published() is None


def test_engines_in_a_file_and_in_redis(redis_url: str, tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine(), FakeEngine()]
    with serving(*engines) as urls, Client(redis_url, run="r") as client:
        (file := tmp_path / "engines").write_text(f"# two\n{urls[0]}\n{urls[1]}/\n")
        add_address(ledger_of(client).redis, "big", urls[2])
        sources = engine_flags(f"file:{file}", "redis:big", urls[0])
        assert cli.main([*LINE, *sources, "--redis", redis_url]) == 0
    assert [engine.version for engine in engines] == ["v7"] * 3
    assert engines[0].posts.count("/update_weights_from_disk") == 1


def test_the_flags_reach_the_fleet(tmp_path: Path) -> None:
    (key := tmp_path / "key").write_text("s3cret")
    with serving(engine := FakeEngine()) as urls:
        flags = ["--pause", "in_place", "--no-checksums", "--api-key-file", str(key)]
        assert cli.main([*LINE, *engine_flags(*urls), *flags]) == 0
    assert engine.body("/pause_generation") == {"mode": "in_place"}
    assert "/weights_checker" not in engine.posts and engine.keys == {"Bearer s3cret"}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--engine", "http://a:1", "--run", "r"], "--run and --step go together"),
        (["--engine", "http://a:1", "--step", "1"], "--run and --step go together"),
        (["--engine", "a"], "--engine"),
        (["--engine", "file:/no/such/file"], "/no/such/file"),
        (["--engine", "http://a:1", "--pause", "x"], "expected retract or in_place or abort"),
        (["--engine", "http://a:1", "--api-key-file", "/no/key"], "/no/key"),
    ],
    ids=repr,
)
def test_a_wrong_line_changes_nothing(flags: list[str], reason: str, fails: Fails) -> None:
    assert reason in fails(*LINE, *flags)


def test_the_run_is_looked_for_before_the_engines_are_touched(redis_url: str, fails: Fails) -> None:
    with serving(engine := FakeEngine()) as urls:
        line = [*LINE, *engine_flags(*urls), "--run", "r", "--step", "7", "--redis"]
        assert "no Redis at" in fails(*line, f"redis://127.0.0.1:{free_port()}/0", code=1)
        assert "no run 'r' at" in fails(*line, redis_url)
    assert engine.calls == []


def test_a_name_of_another_step_is_refused_before_the_engines_are_touched(
    redis_url: str, fails: Fails
) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    with Client(redis_url, run="r") as client:
        client.publish(6, "v7")
        client.publish(7, "v8")
    with serving(engine := FakeEngine()) as urls:
        said = fails(*LINE, *engine_flags(*urls), "--run", "r", "--step", "8", "--redis", redis_url)
    assert "weight version 'v7' is step 6, not 8" in said and engine.calls == []


def test_a_closed_stderr_stops_no_engine_and_no_publication(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    unread, stderr = os.pipe()
    os.close(unread)
    with serving(engine := FakeEngine()) as urls, open(stderr, "w") as closed:
        monkeypatch.setattr("sys.stderr", closed)
        assert (
            cli.main(
                [*LINE, *engine_flags(*urls), "--run", "r", "--step", "7", "--redis", redis_url]
            )
            == 1
        )
    assert (engine.version, engine.paused) == ("v7", None)
    with Client(redis_url, run="r") as client:
        assert client.published() == Published(7, "v7")


def test_a_list_with_a_wrong_entry_is_named(tmp_path: Path, fails: Fails) -> None:
    (file := tmp_path / "engines").write_text("user:s3cret@gpu-1:30000\n")
    said = fails(*LINE, "--engine", f"file:{file}")
    assert f"file:{file}: not an address like http://HOST:PORT" in said and "s3cret" not in said
