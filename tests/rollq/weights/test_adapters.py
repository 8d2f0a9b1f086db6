"""Versions of LoRA adapters in a fleet's engines."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import SettingsError, SyncError
from rollq.weights import Fleet
from tests.rollq.weights.fake_engines import FakeEngine, serving


def test_a_version_is_loaded_under_its_own_name_without_a_pause() -> None:
    engines = [FakeEngine(), FakeEngine()]
    with serving(*engines) as urls:
        fleet = Fleet(urls)
        assert [done.loaded for done in fleet.load_adapter("math", "/adapters/6", "6")] == [
            True,
            True,
        ]
        assert [done.loaded for done in fleet.load_adapter("math", Path("/adapters/7"), "7")] == [
            True,
            True,
        ]
        assert [done.loaded for done in fleet.load_adapter("math", "/adapters/7", "7")] == [
            False,
            False,
        ]
    assert [engine.adapters for engine in engines] == [
        {"math@6": "/adapters/6", "math@7": "/adapters/7"}
    ] * 2
    assert all(set(engine.posts) == {"/load_lora_adapter"} for engine in engines)


def test_a_failed_engine_is_named_keeps_its_old_version_and_a_repeat_repairs() -> None:
    engines = [FakeEngine(), FakeEngine()]
    bad = engines[1]
    with serving(*engines) as urls:
        fleet = Fleet(urls)
        fleet.load_adapter("math", "/adapters/6", "6")
        answer = {
            "success": False,
            "error_message": "LoRA is not enabled. Please set `--enable-lora`",
        }
        bad.answers["/load_lora_adapter"] = (400, answer)
        with pytest.raises(SyncError) as caught:
            fleet.load_adapter("math", "/adapters/7", "7")
        assert caught.value.failed == {
            bad.url: "load: HTTP 400 LoRA is not enabled. Please set `--enable-lora`"
        }
        assert bad.adapters == {"math@6": "/adapters/6"}
        bad.answers.clear()
        assert [done.loaded for done in fleet.load_adapter("math", "/adapters/7", "7")] == [
            False,
            True,
        ]


def test_two_calls_at_once_both_succeed() -> None:
    class Slow(FakeEngine):
        def load_lora_adapter(self, body: Any) -> tuple[int, Any]:
            both.wait(10)
            return super().load_lora_adapter(body)

    both = threading.Barrier(2)
    with serving(engine := Slow()) as urls, ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(Fleet(urls).load_adapter, "math", "/adapters/7", "7") for _ in range(2)
        ]
        assert all(call.result(30) for call in calls)
    assert engine.adapters == {"math@7": "/adapters/7"}


def test_a_version_stays_bound_to_its_folder() -> None:
    with serving(engine := FakeEngine()) as urls:
        Fleet(urls).load_adapter("math", "/adapters/7", "7")
        with pytest.raises(
            SyncError, match="verify: it has math@7 from /adapters/7: give each version a name"
        ):
            Fleet(urls).load_adapter("math", "/adapters/8", "7")
    assert engine.adapters == {"math@7": "/adapters/7"}


def test_what_is_not_kept_is_unloaded_and_other_adapters_stay() -> None:
    engines = [FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.adapters = dict.fromkeys(
            ("math@5", "math@6", "math@7", "mathematics@5", "code@5"), "/x"
        )
    engines[1].answers["/unload_lora_adapter"] = (500, "")
    with serving(*engines) as urls:
        assert Fleet(urls).unload_adapter("math", keep=["6", "7"]) == {engines[1].url: "HTTP 500"}
    assert set(engines[0].adapters) == {"math@6", "math@7", "mathematics@5", "code@5"}


def test_one_version_in_place_of_a_list_unloads_nothing() -> None:
    with serving(engine := FakeEngine()) as urls:
        engine.adapters = {"math@41": "/adapters/41"}
        with pytest.raises(
            SettingsError, match=r"versions are kept by a list, also a single one: keep=\['41'\]"
        ):
            Fleet(urls).unload_adapter("math", keep="41")
    assert engine.adapters == {"math@41": "/adapters/41"}


@pytest.mark.parametrize(
    ("had", "wanted"), [("/adapters/7", "/adapters/7/"), ("/adapters/7/", "/adapters/7")]
)
def test_a_slash_at_the_end_of_a_folder_is_no_other_folder(had: str, wanted: str) -> None:
    with serving(engine := FakeEngine()) as urls:
        engine.adapters = {"math@7": had}  # --lora-paths math@7=/adapters/7
        assert [done.loaded for done in Fleet(urls).load_adapter("math", wanted, "7")] == [False]


@pytest.mark.parametrize("name", ["", "a@b", "a/b", None])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(SettingsError, match="the name of an adapter must match"):
        Fleet(["http://a"]).load_adapter(name, "/x", "1")
    with pytest.raises(SettingsError, match="the name of an adapter must match"):
        Fleet(["http://a"]).unload_adapter(name, [])


def test_no_folder() -> None:
    with pytest.raises(SettingsError, match="path is empty"):
        Fleet(["http://a"]).load_adapter("math", "", "1")
