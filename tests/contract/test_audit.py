"""What the audit asks of a real SGLang server: scores of a prefill, and of each token at its own
temperature.
"""

from array import array
from collections.abc import Iterator

import pytest

from rollq_worker.audit.comparison import rescale
from rollq_worker.audit.detection import open_scorer
from rollq_worker.audit.scorer import Scorer
from tests.contract.conftest import Server

pytestmark = pytest.mark.sglang
NOISE = 0.07
"""Between decoding and prefill of the tiny model, in nats, at most."""


@pytest.fixture
def scorer(sglang_server: Server) -> Iterator[Scorer]:
    scorer = open_scorer(sglang_server.url)
    yield scorer
    scorer.close()


@pytest.mark.parametrize("temperature", [0.001, 0.7, 1.0, 1.5])
def test_scores_are_the_logprobs_that_were_sampled(
    sglang_server: Server, scorer: Scorer, temperature: float
) -> None:
    """From the likeliest tokens where they say enough, and token by token."""
    prompt = sglang_server.prompt()
    sampled = scorer.sample(
        array("I", prompt), {"max_new_tokens": 40, "temperature": temperature, "ignore_eos": True}
    )
    ids, first = array("I", prompt) + sampled.ids, len(prompt)
    decoded = [scorer.score_decoded(ids[:i], ids[i], temperature) for i in range(first, len(ids))]
    assert decoded == pytest.approx(sampled.logprobs.tolist(), abs=NOISE / temperature)
    scores = scorer.score(ids, first - 1, likeliest=128)
    quick = [
        rescale(p, top, temperature)
        for p, top in zip(scores.logprobs, scores.top_logprobs, strict=True)
    ]
    known = [(p, q) for p, q in zip(quick, sampled.logprobs, strict=True) if p is not None]
    assert len(known) == 40 or temperature > 1
    assert all(p == pytest.approx(q, abs=NOISE / temperature) for p, q in known)


def test_a_prefill_of_its_own_reads_nothing_that_was_cached_while_decoding(
    sglang_server: Server,
) -> None:
    prompt, sampling = (
        sglang_server.prompt("Which parts of the cache does an audit read?"),
        {"max_new_tokens": 1},
    )
    cached = [
        sglang_server.generate(prompt, sampling_params=sampling, extra_key=key)["meta_info"][
            "cached_tokens"
        ]
        for key in ("decoded", "scored", "decoded")
    ]
    assert cached[:2] == [0, 0] and cached[2] > len(prompt) // 2
