"""The Qwen vocabulary of the tests is the published one."""

import json
from pathlib import Path

from tests.rollq_worker.tokens.qwen_vocabulary import qwen_spec


def test_it_is_the_published_tokenizer(shared: Path):
    made, published = (
        json.loads(qwen_spec()),
        json.loads((shared / "data/qwen/tokenizer.json").read_bytes()),
    )
    model = made.pop("model")
    assert made.items() <= published.items() and model.items() <= published["model"].items()
