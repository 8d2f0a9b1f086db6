"""A request's images: data URLs in order, and one placeholder for each in the ids."""

import base64
from array import array

from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.engine.exchange.prompts import collapsed
from rollq_worker.protocols import PromptImages
from tests.rollq_worker.engine.clients import Connect
from tests.rollq_worker.engine.engine_servers import reply, scripted_engine
from tests.rollq_worker.pictures import image
from tests.sample_requests import sample_request

PAD = 5


@given(st.lists(st.tuples(st.lists(st.sampled_from([1, 2, 3])), st.integers(0, 4))))
def test_each_run_becomes_one_placeholder(pieces: list[tuple[list[int], int]]) -> None:
    ids, expected = array("I"), array("I")
    for text, run in pieces:
        ids.extend([*text, 9, *[PAD] * run])
        expected.extend([*text, 9, *[PAD] * min(run, 1)])
    assert collapsed(ids, PAD) == expected


def test_the_engine_is_sent_them_and_counts_the_whole_prompt(connect: Connect) -> None:
    shown = [image(2, 3), image(4, 1)]
    ids = array("I", [1, PAD, PAD, PAD, 2, PAD, PAD, 3])
    images = PromptImages(PAD, shown)
    with scripted_engine(
        lambda body: reply([7, 8, 9], prompt_tokens=len(ids), id=body["rid"])
    ) as engine:
        client = connect(engine)
        client.generate(sample_request(ids, images=images))
    body = engine.bodies()[0]
    assert body["input_ids"] == [1, PAD, 2, PAD, 3]
    files = [base64.b64decode(url.partition("base64,")[2]) for url in body["image_data"]]
    assert files == [one.data for one in shown]
