"""Images on real servers: a tiny Qwen2.5-VL and a tiny Qwen3-VL with random vision towers, and the
replay engine.

The models are made from the small text model of the other contract tests. Their chat template is
the bundled one, which also shows images.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from rollq.env import Image
from rollq.errors import EngineFailure
from rollq.events import Stop
from rollq.images import images_of_segments
from rollq_worker.engine.client import EngineClient
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.contract.conftest import (
    CACHE,
    Server,
    installed,
    replay,
    sglang,
    sglang_scripts,
    wrapped,
)
from tests.rollq_worker import counting
from tests.rollq_worker.pictures import file_of, image, vision_template, write_vision_tokenizer

HERE = Path(__file__).parent
SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"
NEVER_ANSWERED_S = 10
REAL = [pytest.param(kind, marks=pytest.mark.sglang) for kind in ("qwen2_5_vl", "qwen3_vl")]
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module", params=["replay", *REAL])
def vision_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("vision")
    if request.param == "replay":
        tokenizer = tmp_path_factory.mktemp("tokenizer")
        with replay(folder, tokenizer=str(write_vision_tokenizer(tokenizer))) as server:
            yield Server(server.url, load(tokenizer), server.process, server.gate)
        return
    scripts = sglang_scripts()
    venv, model = installed(scripts)
    serving = wrapped(venv, folder)
    with sglang(scripts, serving, made(request.param, venv, model), folder / "log") as server:
        yield server
        assert server.process is not None
        server.process.signal(
            signal.SIGKILL
        )  # while a request is never answered, it takes a minute to stop


def load(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


def made(kind: str, venv: Path, text_model: Path) -> Path:
    """The model of that kind, made on first use."""
    model = CACHE / f"{text_model.name}-{kind}"
    template = CACHE / f"{text_model.name}-{kind}.jinja"
    template.write_text(vision_template())
    if not (model / "preprocessor_config.json").exists():
        command = [
            venv / "bin" / "python",
            HERE / "tiny_vision_model.py",
            text_model,
            model,
            kind,
            template,
        ]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return model


def ask(server: Server, text: str, *images: Image, **more: Any) -> Any:
    ids = list(server.tokenizer.encode(text))
    body = {
        "input_ids": ids,
        "image_data": [one.data_url for one in images],
        "return_logprob": True,
    }
    body["sampling_params"] = {"max_new_tokens": 3, "temperature": 0, **more.pop("sampling", {})}
    return requests.post(f"{server.url}/generate", json=body | more, timeout=NEVER_ANSWERED_S)


def prompt(*sizes: tuple[int, int]) -> str:
    return f"<|im_start|>user\n{SHOWN * len(sizes)}What is it?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "sizes", [[(100, 60)], [(7, 300)], [(31, 31), (640, 480)], [(1500, 40), (28, 28), (64, 64)]]
)
def test_the_server_counts_as_many_tokens_as_we_do(
    vision_server: Server, sizes: list[tuple[int, int]]
) -> None:
    renderer = ChatRenderer(vision_server.tokenizer)
    answer = ask(vision_server, prompt(*sizes), *(image(*size) for size in sizes))
    assert answer.status_code == 200, answer.text
    text = len(vision_server.tokenizer.encode(prompt(*sizes))) - len(sizes)
    counted = sum(renderer.image_length(*size) for size in sizes)
    assert answer.json()["meta_info"]["prompt_tokens"] == text + counted


def test_a_jpeg_counts_too(vision_server: Server) -> None:
    jpeg = Image(file_of(90, 90, kind="JPEG"))
    counted = ChatRenderer(vision_server.tokenizer).image_length(90, 90)
    text = len(vision_server.tokenizer.encode(prompt((90, 90)))) - 1
    assert (
        ask(vision_server, prompt((90, 90)), jpeg).json()["meta_info"]["prompt_tokens"]
        == text + counted
    )


def test_ids_that_no_tokenizer_would_give_are_kept(vision_server: Server) -> None:
    """Sampled ids are never encoded again: a server that decoded the prompt would count other
    tokens.
    """
    tokenizer = vision_server.tokenizer
    ids = [
        *tokenizer.encode(prompt((56, 56))),
        *(tokenizer.encode(letter)[0] for letter in "hello"),
    ]
    sent = {"input_ids": ids, "logprob_start_len": 0}
    meta = ask(vision_server, "", image(56, 56), **sent).json()["meta_info"]
    at = ids.index(tokenizer.added_tokens["<|image_pad|>"])
    scored = [entry[1] for entry in meta["input_token_logprobs"]]
    assert scored[:at] == ids[:at] and scored[at - len(ids) + 1 :] == ids[at + 1 :]


def test_another_number_of_placeholders_is_refused(vision_server: Server) -> None:
    assert ask(vision_server, prompt((56, 56), (56, 56)), image(56, 56)).status_code >= 400


def test_a_prompt_with_all_placeholders_is_not_answered(vision_server: Server) -> None:
    """Why the client sends one placeholder for each image."""
    whole = prompt((56, 56)).replace("<|image_pad|>", "<|image_pad|>" * 4)
    with contextlib.suppress(requests.Timeout):
        assert ask(vision_server, whole, image(56, 56)).status_code >= 400


@pytest.mark.parametrize("vision_server", REAL, indirect=True)
def test_a_model_sees_the_image(vision_server: Server) -> None:
    first = [
        ask(vision_server, prompt((112, 112)), image(112, 112, seed)).json()["meta_info"][
            "output_token_logprobs"
        ][0][0]
        for seed in (1, 2, 1)
    ]
    assert abs(first[0] - first[2]) < 1e-3 < abs(first[0] - first[1])


class TestEpisodes:
    def test_play_to_their_end(
        self, vision_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        domain = counting.install(monkeypatch)
        tokenizer = vision_server.tokenizer
        engine = EngineClient(vision_server.url, vocab_size=tokenizer.vocab_size)
        try:
            for index in range(4):
                played = counting.play_task(
                    domain, index, engine, tokenizer, max_turns=4, max_new_tokens=60
                )
                assert played.stop in (Stop.DONE, Stop.TURNS, Stop.MALFORMED, Stop.LENGTH)
                (shown,) = images_of_segments(played)
                squares = sum(
                    ChatRenderer(tokenizer).image_length(*size_of(data)) for data in shown
                )
                assert played.tokens.count(tokenizer.added_tokens["<|image_pad|>"]) == squares > 0
        finally:
            engine.close()

    @pytest.mark.parametrize("vision_server", REAL, indirect=True)
    def test_sampled_logprobs_are_those_of_scoring_the_whole(
        self, vision_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        domain, tokenizer = counting.install(monkeypatch), vision_server.tokenizer
        engine = EngineClient(vision_server.url, vocab_size=tokenizer.vocab_size)
        played = counting.play_task(domain, 0, engine, tokenizer, max_turns=3, max_new_tokens=60)
        engine.close()
        (row,), (shown,) = played.segments(), images_of_segments(played)
        whole = [*row.prompt_ids, *row.response_ids]
        pad = tokenizer.added_tokens["<|image_pad|>"]
        sent = [id for at, id in enumerate(whole) if id != pad or whole[at - 1] != pad]
        body = {
            "input_ids": sent,
            "logprob_start_len": 0,
            "sampling": {"max_new_tokens": 1, "temperature": 1},
        }
        meta = ask(vision_server, "", *map(Image, shown), **body).json()["meta_info"]
        scored = [entry[0] for entry in meta["input_token_logprobs"]][len(row.prompt_ids) :]
        assert len(scored) == len(row.mask)
        pairs = [
            (a, b) for a, b, sampled in zip(row.logprobs, scored, row.mask, strict=True) if sampled
        ]
        assert (
            pairs and max(abs(a - b) for a, b in pairs) < 0.15
        )  # bf16 on a CPU, computed in other batches


def test_another_image_processor_is_noticed(
    vision_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = counting.install(monkeypatch)
    tokenizer = load(Path(vision_server.tokenizer.name))
    tokenizer.image_processor = {
        **(tokenizer.image_processor or {}),
        "size": {"shortest_edge": 1, "longest_edge": 9999},
    }
    engine = EngineClient(vision_server.url, vocab_size=tokenizer.vocab_size)
    try:
        with pytest.raises(EngineFailure, match="count an image's tokens otherwise"):
            counting.play_task(domain, 0, engine, tokenizer)
    finally:
        engine.close()


def size_of(data: bytes) -> tuple[int, int]:
    found = Image(data).reference
    return found.width, found.height
