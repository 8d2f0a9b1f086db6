"""A real Chromium without a window, driven by Playwright. A page that logs an error
fails its test.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollq_view import live_run

Opens = Callable[..., Any]


def is_wrong(message: Any) -> bool:
    """A live page may ask once more after its test has ended the server."""
    return message.type == "error" and "ERR_CONNECTION_REFUSED" not in message.text


@pytest.fixture
def opens(browser: Any) -> Iterator[Opens]:
    """Opens an address in a context of its own. At the end no page may have logged an error."""
    contexts, wrong = [], []

    def opened(url: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: wrong.append(message.text) if is_wrong(message) else None
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "READ_EVERY_S", -1.0)
