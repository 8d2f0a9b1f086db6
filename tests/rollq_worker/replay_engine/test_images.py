"""The replay engine counts a request's images as SGLang does, and plays an environment that shows
some.
"""

from pathlib import Path
from typing import Any

import pytest
import requests

from rollq.env import Image
from rollq.errors import JobFailure
from rollq.events import Stop
from rollq.images import images_of_segments
from rollq_worker.engine.client import EngineClient
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.rollq_worker import counting
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.pictures import image, write_vision_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(str(write_vision_tokenizer(tmp_path)))


def test_episodes_with_images_earn_the_reward(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = counting.install(monkeypatch)
    with replaying(env=counting.NAME, tokenizer=tokenizer.name) as url:
        engine = EngineClient(url, vocab_size=tokenizer.vocab_size)
        for index in range(4):
            trajectory = counting.play_task(domain, index, engine, tokenizer)
            assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)
            (shown,) = images_of_segments(trajectory)
            assert len(shown) == 3
            squares = sum((Image(data).reference.width // 28) ** 2 for data in shown)
            assert (
                trajectory.tokens.count(tokenizer.added_tokens["<|image_pad|>"])
                == squares
                == 3 * 64
            )
        engine.close()


def test_a_model_of_text_fails_the_job_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    domain, text = counting.install(monkeypatch), load_tokenizer()
    with replaying(env=counting.NAME) as url:
        engine = EngineClient(url, vocab_size=text.vocab_size)
        with pytest.raises(JobFailure, match=r"a model of text: serve Qwen2\.5-VL or Qwen3-VL"):
            counting.play_task(domain, 0, engine, text)
        engine.close()


def test_other_numbers_of_placeholders_are_refused(tokenizer: Tokenizer) -> None:
    def ask(text: str, *images: Image, **more: Any) -> requests.Response:
        body = {
            "input_ids": list(tokenizer.encode(text)),
            "image_data": [one.data_url for one in images],
            **more,
        }
        return requests.post(f"{url}/generate", json=body, timeout=60)

    shown = "<|vision_start|><|image_pad|><|vision_end|>"
    with replaying(tokenizer=tokenizer.name) as url:
        fine = ask(shown, image(56, 84))
        assert fine.json()["meta_info"]["prompt_tokens"] == 6 + 2
        refused = ask(shown + shown, image(56, 56))
        assert (
            refused.status_code == 400 and "2 image placeholders but 1 image inputs" in refused.text
        )
        assert ask(shown, image_data=["data:image/png;base64,bm8="]).status_code == 400
        for wrong in ({"image_data": [5]}, {"image_data": 5}, {"input_ids": None}):
            assert ask(shown, image(56, 84), **wrong).status_code == 400
