"""One rollout as one HTML file that needs nothing else: script, style and data are inside.

The file's own policy allows exactly its script and style, by their hashes, and no connection at
all.
"""

import html
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

from rollq_view.conversation import as_json

SCRIPTS = ("text.js", "turns.js", "rollout.js", "single.js")


def single_page(page: Mapping[str, Any]) -> str:
    """The file's text, in ASCII but for the page's own assets."""
    style = _asset("view.css")
    script = "\n".join(map(_asset, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # Inside a script element only `<` can end the data: `</script` or `<!--`.
    data = as_json(page).replace("<", "\\u003c")
    title = html.escape(str(page["job"]).encode("ascii", "backslashreplace").decode())
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
<body>
<main id="page" tabindex="-1"></main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
"""


def _asset(name: str) -> str:
    return files("rollq_view").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
