"""`rollq engines sync`: new weights on engines, and their version in a run."""

import os
from pathlib import Path

import pytest

from rollq import Client
from rollq.ledger.replies import Published
from rollq.ledger.workers.engine_addresses import add_address
from tests.conftest import free_port
from tests.ledger_of import ledger_of
from tests.rollq.commands.conftest import Fails, Says
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.weights.fake_engines import FakeEngine, serving

LINE = ("engines", "sync", "--path", "/weights/7", "--version", "v7")
RUN = ("--run", "r", "--step")


def engine_flags(*urls: str) -> list[str]:
    return [word for url in urls for word in ("--engine", url)]


def test_the_version_is_published_when_all_engines_have_it(client: Client, says: Says) -> None:
    says(*SUBMIT)
    with serving(FakeEngine(), FakeEngine()) as urls:
        said = says(*LINE, *engine_flags(*urls), *RUN, "7")
        again = says(*LINE, *engine_flags(*urls), *RUN, "7").out
    assert all(
        f"{url}  loaded     paused 0." in said.out and f"{url}  unchanged" in again for url in urls
    )
    assert "version v7 on 2 of 2 engines\npublished: run r is at step 7\n" in said.out
    assert "2/2  " in said.err and f"{urls[0]} done" in said.err
    assert client.published() == Published(7, "v7")


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
    client: Client, says: Says
) -> None:
    says(*SUBMIT, "--set", "adapter=math")
    with serving(engine := FakeEngine()) as urls:
        for step in (0, 1, 2):
            said = says(*of_adapter(step), *engine_flags(*urls), *RUN, str(step)).out
        for other in ([], ["--adapter", "code"]):
            refused = says(*LINE, *other, *engine_flags(*urls), *RUN, "2", code=2).err
            assert "run r is played with adapter math: name it with --adapter math" in refused
    assert engine.adapters == {"math@v1": "/a/1", "math@v2": "/a/2"}
    assert (
        said == f"{urls[0]}  loaded\nversion v2 of adapter math on 1 of 1 engines\npublished: "
        "run r is at step 2\n"
    )
    assert client.published() == Published(2, "v2")


def test_a_step_back_unloads_what_was_trained_since_so_that_it_is_read_anew(says: Says) -> None:
    with serving(engine := FakeEngine()) as urls:
        engine.adapters = {"math@v9": "/of an earlier sync, which failed elsewhere"}
        says(*SUBMIT, "--set", "adapter=math")
        for step in (7, 8, 7):
            says(*of_adapter(step), *engine_flags(*urls), *RUN, str(step))
        assert engine.adapters == {"math@v7": "/a/7"}
        says(*of_adapter(8, "/other/8"), *engine_flags(*urls), *RUN, "8")
    assert engine.adapters == {"math@v7": "/a/7", "math@v8": "/other/8"}


def test_a_run_without_an_adapter_gets_none(says: Says) -> None:
    says(*SUBMIT)
    with serving(engine := FakeEngine()) as urls:
        said = says(*of_adapter(0), *engine_flags(*urls), *RUN, "0", code=2).err
    assert "run r is played with adapter none: leave --adapter out, or use another run" in said
    assert engine.adapters == {}


def test_without_a_run_the_next_step_is_said(says: Says) -> None:
    with serving(FakeEngine()) as urls:
        said = says(*LINE, *engine_flags(*urls)).out
    assert said.endswith("next: rollq engines publish --run RUN --step K --version v7\n")


def test_a_failed_engine_is_named_and_nothing_is_published(client: Client, says: Says) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    says(*SUBMIT)
    with serving(engine := FakeEngine()) as urls:
        line = (*LINE, *engine_flags(*urls, away), *RUN, "7")
        said = says(*line, code=1)
        found = says(*line, "--json", code=1).json
    assert f"rollq: 1 of 2 engines do not serve version 'v7': {away} (" in said.err
    assert f"{away}  failed\nversion v7 on 1 of 2 engines\n" in said.out
    assert [one["url"] for one in found["engines"]] == urls and [*found["failed"]] == [away]
    assert found["published"] is None
    assert engine.version == "v7" and client.published() is None


def test_engines_in_a_file_and_in_redis(client: Client, tmp_path: Path, says: Says) -> None:
    engines = [FakeEngine(), FakeEngine(), FakeEngine()]
    with serving(*engines) as urls:
        (file := tmp_path / "engines").write_text(f"# two\n{urls[0]}\n{urls[1]}/\n")
        add_address(ledger_of(client).redis, "big", urls[2])
        says(*LINE, *engine_flags(f"file:{file}", "redis:big", urls[0]))
    assert [engine.version for engine in engines] == ["v7"] * 3
    assert engines[0].posts.count("/update_weights_from_disk") == 1


def test_the_flags_reach_the_fleet(tmp_path: Path, says: Says) -> None:
    (key := tmp_path / "key").write_text("s3cret")
    with serving(engine := FakeEngine()) as urls:
        flags = ["--pause", "in_place", "--no-checksums", "--api-key-file", str(key)]
        says(*LINE, *engine_flags(*urls), *flags)
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
        line = [*LINE, *engine_flags(*urls), *RUN, "7", "--redis"]
        assert "no Redis at" in fails(*line, f"redis://127.0.0.1:{free_port()}/0", code=1)
        assert "no run 'r' at" in fails(*line, redis_url)
    assert engine.calls == []


def test_a_name_of_another_step_is_refused_before_the_engines_are_touched(
    client: Client, says: Says
) -> None:
    says(*SUBMIT)
    client.publish(6, "v7")
    client.publish(7, "v8")
    with serving(engine := FakeEngine()) as urls:
        said = says(*LINE, *engine_flags(*urls), *RUN, "8", code=2).err
    assert "weight version 'v7' is step 6, not 8" in said and engine.calls == []


def test_a_closed_stderr_stops_no_engine_and_no_publication(
    client: Client, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(*SUBMIT)
    unread, stderr = os.pipe()
    os.close(unread)
    with serving(engine := FakeEngine()) as urls, open(stderr, "w") as closed:
        monkeypatch.setattr("sys.stderr", closed)
        says(*LINE, *engine_flags(*urls), *RUN, "7", code=1)
    assert (engine.version, engine.paused) == ("v7", None)
    assert client.published() == Published(7, "v7")


def test_a_list_with_a_wrong_entry_is_named(tmp_path: Path, fails: Fails) -> None:
    (file := tmp_path / "engines").write_text("user:s3cret@gpu-1:30000\n")
    said = fails(*LINE, "--engine", f"file:{file}")
    assert f"file:{file}: not an address like http://HOST:PORT" in said and "s3cret" not in said
