"""The site of the documents in a real Chromium: nothing is loaded from elsewhere, no page is wider
than its screen, no picture is missing, and the search finds commands.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO

pytestmark = pytest.mark.browser

PHONE, DESK = 390, 1280


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are no part of a test's output."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The built site and the address that serves it."""
    folder = tmp_path_factory.mktemp("site")
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(
        build,
        cwd=REPO,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(("width", "colours"), [(PHONE, "dark"), (DESK, "light")])
def test_every_page_fits_and_is_whole(
    site: tuple[Path, str], browser: Any, width: int, colours: str
) -> None:
    folder, address = site
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    assert len(pages) > 35
    faults = {}
    for name in pages:
        page.goto(address + name)
        wide = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        missing = page.evaluate(
            "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
        )
        if wide > 0 or missing:
            faults[name] = (wide, missing)
    page.close()
    assert (faults, complaints) == ({}, [])
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_the_search_finds_a_command(site: tuple[Path, str], browser: Any) -> None:
    page = browser.new_page(viewport={"width": DESK, "height": 900})
    page.goto(site[1] + "index.html")
    page.click("[data-md-component=search-query]")
    page.keyboard.type("requeue")
    page.wait_for_selector(".md-search-result__link")
    assert "recover.html" in "".join(
        link.get_attribute("href") for link in page.query_selector_all(".md-search-result__link")
    )
    page.close()
