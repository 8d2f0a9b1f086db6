"""The weight update of vLLM engines, alone and beside SGLang's."""

import pytest

from rollq.errors import SyncError
from rollq.weights import Fleet
from tests.rollq.weights.fake_engines import WEIGHTS, FakeEngine, failing, serving
from tests.rollq.weights.fake_vllm import FakeVllm


@pytest.mark.parametrize(
    ("mode", "asked", "flushes"),
    [("retract", "keep", True), ("in_place", "keep", False), ("abort", "abort", True)],
)
def test_an_update(mode: str, asked: str, flushes: bool) -> None:
    modes: list[str | None] = []
    engine = FakeVllm()

    def report(url: str, step: str) -> None:
        if step == "update":
            modes.append(engine.paused)

    with serving(engine) as urls:
        [done] = Fleet(urls, pause=mode).update(WEIGHTS, "7", report)
    flush = ["/reset_prefix_cache"] if flushes else []
    assert engine.posts == [
        "/weight_checker",
        "/pause",
        "/collective_rpc",
        "/update_weight_version",
        "/weight_checker",
        *flush,
        "/resume",
    ]
    assert set(modes) == {asked} and engine.cached is not flushes
    assert (engine.version, engine.path, engine.paused) == ("7", WEIGHTS, None)
    assert (done.server, done.loaded) == ("vLLM 0.32.0", True)
    assert done.checksum and done.paused_s > 0


def test_its_version_alone_tells_that_it_has_the_weights() -> None:
    engine = FakeVllm()
    with serving(engine) as urls:
        fleet = Fleet(urls)
        fleet.update(WEIGHTS, "7")
        assert [done.loaded for done in fleet.update("/weights/other", "7")] == [False]
        engine.paused = "keep"
        assert [done.loaded for done in fleet.update(WEIGHTS, "7")] == [True]
        assert fleet.versions() == {engine.url: "7"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_folder_that_it_does_not_see_leaves_it_paused_under_the_old_version(device: str) -> None:
    engine = FakeVllm()
    engine.device = device
    with serving(engine) as urls:
        error = failing(Fleet(urls), "/other")
        assert error.failed == {engine.url: "update: HTTP 500 Repo id must use: '/other'"}
        assert (engine.version, engine.paused) == ("0", "keep")
        Fleet(urls).update(WEIGHTS, "7")
    assert (engine.version, engine.paused) == ("7", None)


@pytest.mark.parametrize(("device", "head"), [("cpu", "lm_head"), ("cuda", "embed_tokens")])
def test_a_tied_head_is_loaded_on_gpus_alone(device: str, head: str) -> None:
    engine = FakeVllm()
    engine.device, engine.head = device, head
    with serving(engine) as urls:
        assert Fleet(urls).update(WEIGHTS, "7")[0].loaded
        engine.device, engine.head = "cpu", "embed_tokens"
        error = failing(Fleet(urls), version="8")
    assert "keeps its old output head" in error.failed[engine.url]
    assert (engine.version, engine.paused) == ("7", None)  # it was not begun


def test_a_server_without_development_mode_is_told_what_to_set() -> None:
    engine = FakeVllm(development=False)
    with serving(engine) as urls:
        error = failing(Fleet(urls))
        assert Fleet(urls).versions() == {engine.url: None}
        assert Fleet(urls).load_adapter("math", "/adapters/7", "7")[0].loaded
    assert "look: start vLLM with VLLM_SERVER_DEV_MODE=1" in error.failed[engine.url]


@pytest.mark.parametrize(
    ("path", "reply", "field"),
    [
        ("/version", "0.32.0", "version"),
        ("/server_info", {}, "vllm_config"),
        ("/weight_info", [], "weight_version"),
        ("/is_paused", {}, "is_paused"),
        ("/weight_checker", {}, "checksums"),
        ("/reset_prefix_cache", {}, "success"),
    ],
)
def test_a_reply_that_lacks_a_field_names_it(path: str, reply: object, field: str) -> None:
    engine = FakeVllm()
    engine.answers[path] = (200, reply)
    with serving(engine) as urls:
        error = failing(Fleet(urls))
    assert f"{path} does not name {field}: is this vLLM" in error.failed[engine.url]


def test_a_server_that_loads_no_adapters_is_told_what_to_set() -> None:
    engine = FakeVllm(adapters=False)
    with serving(engine) as urls, pytest.raises(SyncError, match="with --enable-lora"):
        Fleet(urls).load_adapter("math", "/adapters/7", "7")


def test_adapters() -> None:
    engines = [FakeVllm(), FakeEngine()]
    with serving(*engines) as urls:
        fleet = Fleet(urls)
        for version in ("6", "7", "7"):
            fleet.load_adapter("math", f"/adapters/{version}", version)
        assert fleet.unload_adapter("math", keep=["7"]) == {}
    assert [engine.adapters for engine in engines] == [{"math@7": "/adapters/7"}] * 2


def test_checksums_are_compared_among_engines_of_a_kind() -> None:
    engines = [FakeVllm(), FakeVllm(), FakeEngine(), FakeEngine()]
    with serving(*engines) as urls:
        assert len(Fleet(urls).update(WEIGHTS, "7")) == 4
        engines[1].contents["/weights/8"] = "bad"
        with pytest.raises(SyncError) as caught:
            Fleet(urls).update("/weights/8", "8")
    assert set(caught.value.failed) == {engine.url for engine in engines[:2]}
    assert [engine.paused for engine in engines] == ["keep", "keep", None, None]


def test_engines_of_other_shards_are_not_compared() -> None:
    engines = [FakeVllm(), FakeVllm()]
    engines[1].tp_size, engines[1].contents[WEIGHTS] = 2, "other tensors"
    with serving(*engines) as urls:
        assert len(Fleet(urls).update(WEIGHTS, "7")) == 2


def test_weights_that_a_trainer_sends() -> None:
    engines = [FakeVllm(), FakeEngine()]
    with serving(*engines) as urls, Fleet(urls).paused("8"):
        assert all(engine.paused for engine in engines)
    assert [(engine.version, engine.paused) for engine in engines] == [("8", None)] * 2
    assert not engines[0].cached
