"""An engine with another tokenizer than ours is sent nothing, and is said to be one."""

import logging
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from rollq.errors import SettingsError
from rollq_worker.engine import patience, tokenizer_check
from rollq_worker.engine.http import NoAnswer
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.engine.tokenizer_check import KnownTokenizer, agrees
from rollq_worker.failures import Drained
from rollq_worker.process import startup_checks
from tests.rollq_worker.engine.engines import scripted

OURS = (5, 6, 7)


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        ({"tokens": [5, 6, 7]}, True),
        ({"tokens": [1, 5, 6, 7]}, True),  # a token that begins a text
        ({"tokens": [5, 6, 7, 2]}, True),  # one that ends it
        ({"tokens": [5, 6]}, False),
        ({"tokens": [5, 6, 8]}, False),
        ({"tokens": []}, None),
        ({"tokens": [[5, 6, 7]]}, None),
        ({"tokens": "5 6 7"}, None),
        ({"count": 3}, None),
        ([5, 6, 7], None),
        (None, None),
    ],
)
def test_answers(answer: object, same: bool | None) -> None:
    assert agrees(answer, OURS) is same


class Asked:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.times = 0

    def __call__(self, text: str) -> object:
        self.times += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ids(*tokens: int) -> dict[str, Sequence[int]]:
    return {"tokens": list(tokens)}


def test_it_is_asked_once_for_each_engine() -> None:
    asked = Asked(ids(*OURS), ids(8))
    known = KnownTokenizer(asked, OURS)
    assert not known.differs() and not known.differs() and asked.times == 1
    known.forget()
    assert known.differs() and known.differs() and asked.times == 2


def test_one_that_differs_may_be_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_check, "RETRY_S", 0.0)
    known = KnownTokenizer(Asked(ids(8), ids(*OURS)), OURS)
    assert known.differs() and not known.differs()


def test_who_does_not_say_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_check, "RETRY_S", 0.0)
    asked = Asked(NoAnswer("away"), None)
    known = KnownTokenizer(asked, OURS)
    assert not known.differs() and not known.differs() and not known.differs()
    assert asked.times == 2  # away: once more; a router's 404: never again


def test_nothing_to_compare() -> None:
    known = KnownTokenizer(Asked(), ())
    known.forget()
    assert not known.differs()


def test_nothing_is_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "BACKOFF_S", (0.01, 0.02))
    monkeypatch.setattr(tokenizer_check, "RETRY_S", 0.0)
    waits = 0

    def check() -> None:
        nonlocal waits
        waits += 1
        if waits > 3:
            script.paths["/tokenize"] = (200, ids(*OURS))
        if waits > 1000:
            raise Drained("it waits for ever")

    with scripted(ready=(200, {}), tokenize=(200, ids(8))) as script:
        engine = SGLangEngine(script.url, spelling=OURS)
        assert not engine.ready() and engine.differs()
        got = engine.generate(array("I", [1]), sampling={}, max_new_tokens=5, key="r/g/0", check=check)
        assert list(got.ids) == [7, 8, 9] and waits > 3
        assert len(script.bodies()) == 1 and engine.available and engine.outage_s > 0
        engine.close()


def test_a_worker_does_not_start_on_it(caplog: pytest.LogCaptureFixture) -> None:
    with scripted(ready=(200, {}), tokenize=(200, ids(8))) as script:
        engine = SGLangEngine(script.url, spelling=OURS)
        with pytest.raises(SettingsError, match=r"other ids than the model's: give --tokenizer"):
            startup_checks.look_at(engine, script.url, "the model's")
        engine.close()
    with caplog.at_level(logging.WARNING):
        startup_checks.look_at(SGLangEngine(script.url, spelling=OURS), script.url, "the model's")
    assert "nothing is claimed before there is one" in caplog.text
