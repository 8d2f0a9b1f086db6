"""The weight update of a fleet, on servers that show every call."""

import math
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import SettingsError, SyncError
from rollq.weights import Fleet, router_engines
from tests.conftest import free_port
from tests.rollq.weights.fake_engines import (
    HANG,
    OLD,
    WEIGHTS,
    FakeEngine,
    FakeSmg,
    failing,
    serving,
)
from tests.waiting import until

STEPS = [
    "/pause_generation",
    "/update_weights_from_disk",
    "/weights_checker",
    "/flush_cache",
    "/continue_generation",
]
FIRST = ["/weights_checker", *STEPS]
"""An engine compiles what its first checksum needs: before the pause."""


class TestUpdate:
    def test_a_server_with_versions_per_token_retracts_and_flushes(self) -> None:
        engine = FakeEngine()
        engine.waiting = 3
        with serving(engine) as urls:
            [done] = Fleet(urls).update(WEIGHTS, "7")
        assert engine.posts == FIRST
        assert engine.body("/pause_generation") == {"mode": "retract"}
        loaded = engine.body("/update_weights_from_disk")
        assert (loaded["model_path"], loaded["weight_version"], loaded["flush_cache"]) == (
            WEIGHTS,
            "7",
            False,
        )
        assert (engine.version, engine.paused, engine.waiting) == ("7", None, 3)
        assert (done.url, done.server, done.loaded) == (engine.url, "0.5.23", True)
        assert done.paused_s > 0 and done.checksum

    def test_only_the_first_update_asks_for_a_checksum_before_its_pause(self) -> None:
        engine = FakeEngine()
        with serving(engine) as urls:
            fleet = Fleet(urls)
            fleet.update(WEIGHTS, "7")
            engine.calls.clear()
            fleet.update("/weights/8", "8")
        assert engine.posts == STEPS
        with serving(engine) as urls:
            engine.calls.clear()
            Fleet(urls, checksums=False).update(WEIGHTS, "7")
        assert engine.posts == [step for step in STEPS if step != "/weights_checker"]

    def test_an_older_server_aborts(self) -> None:
        engine = FakeEngine(OLD)
        with serving(engine) as urls:
            Fleet(urls).update(WEIGHTS, "7")
        assert engine.calls.count(("/pause_generation", {"mode": "abort"})) >= 1
        assert all(
            body == {"mode": "abort"} for path, body in engine.calls if path == "/pause_generation"
        )
        assert (engine.version, engine.paused) == ("7", None)

    def test_requests_are_aborted_where_a_queue_hinders_the_flush(self) -> None:
        engine = FakeEngine()
        engine.waiting, engine.flush_needs_empty_queue = 3, True
        with serving(engine) as urls:
            Fleet(urls).update(WEIGHTS, "7")
        modes = [body["mode"] for path, body in engine.calls if path == "/pause_generation"]
        assert modes == ["retract", "abort"]
        assert (engine.version, engine.paused) == ("7", None)

    def test_in_place_keeps_the_cache(self) -> None:
        engine = FakeEngine()
        with serving(engine) as urls:
            Fleet(urls, pause="in_place").update(WEIGHTS, "7")
        assert engine.posts == [step for step in FIRST if step != "/flush_cache"]

    def test_an_engine_that_has_the_weights_is_left_alone(self) -> None:
        engines = [FakeEngine(), FakeEngine()]
        with serving(*engines) as urls:
            fleet = Fleet(urls)
            fleet.update(WEIGHTS, "7")
            engines[0].calls.clear()
            again = fleet.update(Path(WEIGHTS), "7")
        assert engines[0].posts == ["/weights_checker"]
        assert [(done.loaded, done.paused_s) for done in again] == [(False, 0.0)] * 2

    @pytest.mark.parametrize(
        "change", [{"paused": "retract"}, {"path": "/weights/6"}, {"version": "6"}]
    )
    def test_an_engine_in_any_other_state_is_loaded(self, change: dict[str, str]) -> None:
        engine = FakeEngine()
        engine.version, engine.path = "7", WEIGHTS
        for name, value in change.items():
            setattr(engine, name, value)
        with serving(engine) as urls:
            [done] = Fleet(urls).update(WEIGHTS, "7")
        assert done.loaded and engine.posts == FIRST and engine.paused is None

    def test_a_slash_at_the_end_of_a_folder_is_no_other_folder(self) -> None:
        engine = FakeEngine()
        engine.version, engine.path = "7", f"{WEIGHTS}/"
        with serving(engine) as urls:
            assert [done.loaded for done in Fleet(urls).update(WEIGHTS, "7")] == [False]

    def test_a_report_that_raises_stops_no_engine(self, caplog: pytest.LogCaptureFixture) -> None:
        def report(url: str, step: str) -> None:
            raise BrokenPipeError("nobody listens")

        with serving(engine := FakeEngine()) as urls:
            assert Fleet(urls).update(WEIGHTS, "7", report)
        assert (engine.version, engine.paused) == ("7", None)
        assert (
            f"{engine.url}: the report of step verify failed: BrokenPipeError: nobody listens"
            in caplog.text
        )

    def test_no_engine_waits_for_one_that_hangs(self) -> None:
        engines = [FakeEngine() for _ in range(3)]
        engines[1].answers["/update_weights_from_disk"] = HANG
        with serving(*engines) as urls:
            found: list[SyncError] = []
            thread = threading.Thread(target=lambda: found.append(failing(Fleet(urls))))
            thread.start()
            until(lambda: [engine.version for engine in engines if not engine.paused] == ["7", "7"])
            assert thread.is_alive()
            engines[1].over.set()
            thread.join()
        assert list(found[0].failed) == [engines[1].url]

    def test_smg_leads_to_the_engines_behind_it(self) -> None:
        engines = [FakeEngine(), FakeEngine()]
        with serving(*engines), serving(FakeSmg(*engines)) as smg:
            done = Fleet(smg).update(WEIGHTS, "7")
            assert Fleet(smg).versions() == {engine.url: "7" for engine in engines}
        assert [one.url for one in done] == [engine.url for engine in engines]
        assert all(engine.posts == FIRST for engine in engines)


class TestFailures:
    @pytest.mark.parametrize("step", STEPS)
    def test_a_failed_engine_stays_paused_the_others_go_on_and_a_repeat_repairs(
        self, step: str
    ) -> None:
        engines = [FakeEngine() for _ in range(3)]
        bad = engines[1]
        with serving(*engines) as urls:
            fleet = Fleet(urls)
            fleet.update("/weights/6", "6")
            bad.answers[step] = (500, {"success": False, "message": "out of\nmemory"})
            if step == "/weights_checker":  # an engine that computes no checksum is not compared
                assert [done.checksum is None for done in fleet.update(WEIGHTS, "7")] == [
                    False,
                    True,
                    False,
                ]
                return
            error = failing(fleet)
            assert (
                list(error.failed) == [bad.url]
                and "HTTP 500 out of memory" in error.failed[bad.url]
            )
            assert bad.url in str(error) and "repeat the update: it loads what" in str(error)
            assert [done.url for done in error.updated] == [engines[0].url, engines[2].url]
            assert [engine.paused for engine in engines if engine is not bad] == [None, None]
            assert bad.paused or step == "/pause_generation"
            bad.answers.clear()
            assert [done.loaded for done in fleet.update(WEIGHTS, "7")] == [False, True, False]
        assert [(engine.version, engine.paused) for engine in engines] == [("7", None)] * 3

    def test_an_engine_that_a_wrong_path_left_paused_goes_on_with_the_weights_before(self) -> None:
        engine = FakeEngine()
        with serving(engine) as urls:
            fleet = Fleet(urls)
            fleet.update("/weights/6", "6")
            engine.answers["/update_weights_from_disk"] = (400, {"message": "no such folder"})
            assert "after an update to the weights that it had" in str(failing(fleet))
            engine.answers.clear()
            fleet.update("/weights/6", "6")
        assert (engine.version, engine.paused) == ("6", None)

    def test_the_weights_must_be_in_use(self) -> None:
        engine = FakeEngine()
        engine.answers["/update_weights_from_disk"] = (200, {"success": True})
        with serving(engine) as urls:
            error = failing(Fleet(urls))
        assert error.failed == {engine.url: "verify: it serves version '0' from /weights/0"}
        assert engine.paused

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (HANG, "no answer to /update_weights_from_disk within 0.2 s"),
            (
                (400, {"success": False, "message": "Failed to get weights iterator"}),
                "Failed to get weights iterator",
            ),
            ((401, {"error": "Unauthorized"}), "--api-key-file"),
            ((302, ""), "HTTP 302"),
            ((503, "<html>"), "HTTP 503 <html>"),
        ],
    )
    def test_every_answer_ends_in_a_reason(self, answer: tuple[int, object], reason: str) -> None:
        engine = FakeEngine()
        engine.answers["/update_weights_from_disk"] = answer
        with serving(engine) as urls:
            # A busy machine takes longer than that for an answer.
            error = failing(Fleet(urls, update_timeout_s=0.2 if answer is HANG else 30.0))
        assert (
            error.failed[engine.url].startswith("update: ") and reason in error.failed[engine.url]
        )

    @pytest.mark.parametrize("body", ["<html>", [], {"model_path": "x"}])
    def test_another_server_is_named(self, body: object) -> None:
        engine = FakeEngine()
        engine.answers["/model_info"] = (200, body)
        with serving(engine) as urls:
            assert "is this an SGLang server?" in failing(Fleet(urls)).failed[engine.url]

    def test_a_router_that_passes_nothing_on(self) -> None:
        router = FakeEngine()
        router.answers["/model_info"] = (404, "")
        with serving(router) as urls:
            assert "give the engines' own addresses" in failing(Fleet(urls)).failed[router.url]

    @pytest.mark.parametrize("workers", [[{"id": "w"}], ["http://h:1"]])
    def test_a_router_that_does_not_name_its_engines(self, workers: object) -> None:
        router = FakeEngine()
        router.answers["/model_info"] = (404, "")
        router.answers["/v1/rl/workers"] = (200, {"workers": workers})
        with serving(router) as urls:
            (reason,) = failing(Fleet(urls)).failed.values()
        assert reason.startswith("/v1/rl/workers does not name")

    def test_the_engines_behind_a_router(self) -> None:
        router = FakeEngine()
        router.answers["/workers"] = (200, {"workers": [{"url": "http://a:1/"}]})
        with serving(router) as urls:
            assert router_engines(f"{urls[0]}/") == ["http://a:1"]
        for wrong in ("foo", "http://me:secret@h:1"):
            with pytest.raises(SettingsError, match="not the address of an engine"):
                router_engines(wrong)

    @pytest.mark.parametrize("path", ["//127.0.0.1:1/\u00e4", None])
    def test_a_router_that_cannot_be_asked(self, path: str | None) -> None:
        router = FakeEngine()
        router.answers["/workers"] = (200, "[" * 200_000)
        with serving(router) as urls, pytest.raises(SyncError, match="does not list its engines"):
            router_engines(f"http:{path}" if path else urls[0])

    def test_an_smg_without_workers(self) -> None:
        with serving(FakeSmg()) as urls:
            assert list(failing(Fleet(urls)).failed.values()) == ["this smg has no workers"]

    def test_the_error_survives_pickling(self) -> None:
        error = failing(Fleet([f"http://127.0.0.1:{free_port()}"]))
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.failed) == (str(error), error.failed)


class TestChecksums:
    def corrupt(self, *contents: str) -> list[FakeEngine]:
        engines = [FakeEngine() for _ in contents]
        for engine, content in zip(engines, contents, strict=True):
            engine.contents[WEIGHTS] = content
        return engines

    def test_the_odd_one_stays_paused(self) -> None:
        engines = self.corrupt("good", "bad", "good")
        with serving(*engines) as urls:
            error = failing(Fleet(urls))
            assert list(error.failed) == [engines[1].url]
            assert "checksum" in error.failed[engines[1].url]
            assert [bool(engine.paused) for engine in engines] == [False, True, False]
            engines[1].contents.clear()
            engines[1].contents[WEIGHTS] = "good"
            Fleet(urls).update(WEIGHTS, "7")
        assert not any(engine.paused for engine in engines)

    def test_an_engine_that_had_the_weights_is_paused_when_it_is_the_odd_one(self) -> None:
        engines = self.corrupt("good", "bad", "good")
        engines[1].version, engines[1].path = "7", WEIGHTS
        with serving(*engines) as urls:
            assert list(failing(Fleet(urls)).failed) == [engines[1].url]
        assert engines[1].paused == "retract"

    def test_engines_of_another_shape_are_not_compared(self) -> None:
        engines = self.corrupt("in two parts", "whole", "in two parts")
        for engine in engines[::2]:
            engine.tp_size = 2
        with serving(*engines) as urls:
            assert len(Fleet(urls).update(WEIGHTS, "7")) == 3


class TestPaused:
    def test_all_engines_are_paused_for_the_transfer_and_named_after_it(self) -> None:
        engines = [FakeEngine(), FakeEngine(OLD)]
        with serving(*engines) as urls, Fleet(urls).paused("7"):
            assert [engine.paused for engine in engines] == ["retract", "abort"]
            assert [engine.version for engine in engines] == ["0", "0"]
        assert [(engine.version, engine.paused) for engine in engines] == [("7", None)] * 2
        assert engines[0].body("/update_weight_version")["abort_all_requests"] is False
        assert "/flush_cache" in engines[0].posts

    def test_a_transfer_that_fails_leaves_them_paused_and_says_so(self) -> None:
        engines = [FakeEngine(), FakeEngine()]
        with serving(*engines) as urls:
            with pytest.raises(ZeroDivisionError) as caught, Fleet(urls).paused("7"):
                raise ZeroDivisionError
            assert all(url in caught.value.__notes__[0] for url in urls)
            assert [(engine.version, engine.paused) for engine in engines] == [("0", "retract")] * 2
            # Back to the last checkpoint.
            assert all(done.loaded for done in Fleet(urls).update("/weights/0", "0"))
        assert not any(engine.paused for engine in engines)

    def test_after_a_failed_transfer_all_that_stay_paused_are_named(self) -> None:
        engines = [FakeEngine(), FakeEngine(), FakeEngine()]
        engines[0].paused = engines[1].paused = "retract"  # by a transfer that failed
        engines[1].answers["/pause_generation"] = (500, "")
        with serving(*engines) as urls, pytest.raises(SyncError) as caught, Fleet(urls).paused("8"):
            pytest.fail("there is nothing to transfer to")
        assert [engine.paused for engine in engines] == ["retract", "retract", None]
        assert [engine.version for engine in engines] == ["0"] * 3
        assert {*caught.value.failed} == {*urls[:2]}
        assert caught.value.failed[urls[0]] == "pause: it was paused before, so it stays paused"
        assert str(caught.value).startswith("2 of 3 engines are not ready for version '8': ")

    def test_those_that_stay_paused_without_a_transfer_are_named(self) -> None:
        engines = [FakeEngine(), FakeEngine(OLD), FakeEngine(), FakeEngine()]
        engines[0].answers["/pause_generation"] = (500, "")
        engines[2].answers["/continue_generation"] = (500, "")
        with serving(*engines) as urls, pytest.raises(SyncError) as caught, Fleet(urls).paused("7"):
            pytest.fail("there is nothing to transfer to")
        assert {*caught.value.failed} == {*urls[:3]}
        assert "cannot say whether it was paused before" in caught.value.failed[urls[1]]
        assert [engine.paused for engine in engines] == [None, "abort", "retract", None]


class TestVersions:
    def test_an_engine_that_was_started_meanwhile_is_found(self) -> None:
        engines, away = [FakeEngine(), FakeEngine()], f"http://127.0.0.1:{free_port()}"
        with serving(*engines) as urls:
            Fleet(urls[:1]).update(WEIGHTS, "7")
            assert Fleet([*urls, away]).versions() == {urls[0]: "7", urls[1]: "0", away: None}


class TestSettings:
    @pytest.mark.parametrize(
        "urls",
        [
            [],
            ["http://a:1", "http://a:1/"],
            ["a:1"],
            ["ftp://a"],
            ["http://a:b"],
            ["http://u:p@a:1"],
            [None],
        ],
    )
    def test_addresses_must_make_a_fleet(self, urls: list[str]) -> None:
        with pytest.raises(SettingsError):
            Fleet(urls)

    def test_a_pause_and_a_version_must_be_known(self) -> None:
        with pytest.raises(SettingsError, match="retract, in_place, abort"):
            Fleet(["http://a:1"], pause="softly")
        with pytest.raises(SettingsError, match="a name such as '41'"):
            Fleet(["http://a:1"]).update(WEIGHTS, "")
        with pytest.raises(SettingsError, match="path is empty"):
            Fleet(["http://a:1"]).update("", "7")
        with pytest.raises(SettingsError, match="path is a folder of weights, not None"):
            Fleet(["http://a:1"]).update(None, "7")  # type: ignore[arg-type]

    @pytest.mark.parametrize("seconds", [0, -1.0, math.nan, "1800", None])
    def test_a_limit_is_a_number_of_seconds(self, seconds: Any) -> None:
        with pytest.raises(SettingsError, match="update_timeout_s is a number of seconds above 0"):
            Fleet(["http://a:1"], update_timeout_s=seconds)

    def test_the_key_is_sent_and_never_shown(self, tmp_path: Path) -> None:
        (file := tmp_path / "key").write_text("s3cret\n")
        engine = FakeEngine()
        with serving(engine) as urls:
            Fleet(urls, file).update(WEIGHTS, "7")
            assert engine.keys == {"Bearer s3cret"}
            engine.answers["/pause_generation"] = (403, "no")
            assert "s3cret" not in repr(failing(Fleet(urls, file), version="8"))

    @pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff\xfe"])
    def test_a_file_without_a_key(self, tmp_path: Path, content: bytes | None) -> None:
        file = tmp_path / "key"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(SettingsError, match=str(file)):
            Fleet(["http://a:1"], file)


def test_an_address_in_place_of_a_list_is_named() -> None:
    with pytest.raises(
        SettingsError,
        match=r"a list of addresses, also of one: Fleet\(\['http://127.0.0.1:30000'\]\)",
    ):
        Fleet("http://127.0.0.1:30000")
