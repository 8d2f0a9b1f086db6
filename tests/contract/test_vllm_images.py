"""Images on a real vLLM server, with the tiny models of test_images.py: token counts, the images
that the model sees, whole episodes.
"""

import io
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from rollq.env import Image
from rollq.errors import EngineFailure, JobFailure
from rollq.images import images_of_segments
from rollq_worker.engine.client import EngineClient
from rollq_worker.protocols import Generated, PromptImages
from rollq_worker.tokens.renderer import ChatRenderer
from tests.contract.conftest import Server, VllmServer, vllm, vllm_installed
from tests.contract.test_images import load, made, prompt
from tests.rollq_worker import counting
from tests.rollq_worker.pictures import image
from tests.sample_requests import sample_request

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    _, text_model = vllm_installed()
    model = made(request.param, VllmServer.venv, text_model)
    with vllm(tmp_path_factory.mktemp("vision") / "log", model=model) as server:
        yield server


@pytest.fixture
def engine(server: Server) -> Iterator[EngineClient]:
    engine = EngineClient(server.url, vocab_size=server.tokenizer.vocab_size)
    yield engine
    engine.close()


def sample(engine: EngineClient, server: Server, *images: Image, **sampling: Any) -> Generated:
    """A turn after the images. A prompt that the server counts otherwise fails."""
    renderer = ChatRenderer(server.tokenizer)
    token = server.tokenizer.added_tokens["<|image_pad|>"]
    text = prompt(*((one.reference.width, one.reference.height) for one in images))
    lengths = iter(
        renderer.image_length(one.reference.width, one.reference.height) for one in images
    )
    ids = array("I")
    for id in server.tokenizer.encode(text):
        ids.extend([id] * (next(lengths) if id == token else 1))
    return engine.generate(
        sample_request(ids, images=PromptImages(token, images), sampling=sampling, max_new_tokens=3)
    )


@pytest.mark.parametrize(
    "sizes", [[(100, 60)], [(7, 300)], [(31, 31), (640, 480)], [(1500, 40), (28, 28), (64, 64)]]
)
def test_the_server_counts_as_many_tokens_as_we_do(
    server: Server, engine: EngineClient, sizes: list[tuple[int, int]]
) -> None:
    assert sample(engine, server, *(image(*size) for size in sizes)).ids


def plain(color: str) -> Image:
    file = io.BytesIO()
    Pillow.new("RGB", (112, 112), color).save(file, "PNG")
    return Image(file.getvalue())


def test_a_model_sees_the_image(server: Server, engine: EngineClient) -> None:
    white, black, again = [
        sample(engine, server, plain(color), temperature=0).logprobs[0]
        for color in ("white", "black", "white")
    ]
    assert abs(white - again) < 1e-3 < abs(white - black)


def test_sampled_logprobs_are_those_of_scoring_the_whole(
    server: Server, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain, tokenizer = counting.install(monkeypatch), server.tokenizer
    pad = tokenizer.added_tokens["<|image_pad|>"]
    for index in range(3):
        played = counting.play_task(
            domain, index, engine, tokenizer, max_turns=3, max_new_tokens=60
        )
        (row,), (shown,) = played.segments(), images_of_segments(played)
        whole = [*row.prompt_ids, *row.response_ids]
        body = {
            "token_ids": [id for at, id in enumerate(whole) if id != pad or whole[at - 1] != pad],
            "content_parts": [
                {"type": "image_url", "url": one.data_url} for one in map(Image, shown)
            ],
            "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0},
        }
        reply = server.post("/inference/v1/generate", body).json()
        scored = reply["prompt_logprobs"][len(row.prompt_ids) :]
        assert len(scored) == len(row.mask)
        apart = [
            abs(logprob - entry[str(id)]["logprob"])
            for logprob, entry, id, sampled in zip(
                row.logprobs, scored, row.response_ids, row.mask, strict=True
            )
            if sampled
        ]
        assert apart and max(apart) < 0.15


def test_another_image_processor_is_noticed(
    server: Server, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain, tokenizer = counting.install(monkeypatch), load(Path(server.tokenizer.name))
    sizes = {"shortest_edge": 1, "longest_edge": 9999}
    tokenizer.image_processor = {**(tokenizer.image_processor or {}), "size": sizes}
    with pytest.raises((EngineFailure, JobFailure), match="count an image's tokens otherwise"):
        counting.play_task(domain, 0, engine, tokenizer)
