"""Takes docs/flower.png: Flower's page of rollouts, in a headless Chromium, from a run with dead
and retried ones.

.venv/bin/python docs/draw_flower.py
"""

import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO))

from playwright.sync_api import sync_playwright  # noqa: E402
from tests.conftest import chromium  # noqa: E402
from tests.deploy.flower_scene import LOGIN, scene  # noqa: E402


def main() -> None:
    user, _, password = LOGIN.partition(":")
    with (
        tempfile.TemporaryDirectory() as folder,
        scene(Path(folder)) as shown,
        sync_playwright() as playwright,
    ):
        # Chromium refuses its sandbox to root.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": 1500, "height": 720},
            http_credentials={"username": user, "password": password},
        )
        page.goto(f"{shown.flower.url}/tasks")
        page.get_by_text("reward").first.wait_for()
        page.screenshot(path=REPO / "docs" / "flower.png")
        browser.close()


if __name__ == "__main__":
    main()
