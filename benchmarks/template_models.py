"""Chat templates from a folder, each with its family's control tokens on one vocabulary, for the
benchmark of tokens.

Families, control tokens and written calls are those of the tests.
"""

import json
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import checked_renderer
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer

sys.path.append(str(Path(__file__).parent.parent))

from tests.rollq_worker.tokens.models import ADDED, NAMED, NAMES  # beside this folder
from tests.rollq_worker.toolcalls.written import WRITE

Write = Callable[[str, Mapping[str, Any]], str]


def template_renderers(
    folder: Path, vocabulary: str | None, tools: list[Any]
) -> Iterator[tuple[str, ChatRenderer]]:
    """Name and renderer of each template that the tests know, as a worker has it."""
    spec = json.loads((Path(vocabulary or BUNDLED) / "tokenizer.json").read_text())
    for name in NAMES:
        if (file := folder / f"{name}.jinja").exists():
            config = NAMED.get(name) or {"eos_token": "<|im_end|>"}
            tokenizer = Tokenizer(
                name, _with_tokens(spec, ADDED.get(name, ())), config, file.read_text()
            )
            yield name, checked_renderer(tokenizer, tools)


def written_calls(renderer: ChatRenderer) -> tuple[Write, int]:
    """A function that writes a call as a turn of the renderer's family, and the token that ends
    such a turn. Exits when the renderer does not read it.
    """
    write = WRITE[renderer.family.parser]
    ids = renderer.tokenizer.added_tokens
    stop = next(
        (id for id in renderer.stop_ids if renderer.replying_roles(id) == {"tool"}),
        ids.get("<|call|>"),
    )
    stop = renderer.stop_ids[0] if stop is None else stop
    for before in ("", "</think>", "</think>\n\n"):  # where the prompt has begun to think

        def call(name: str, arguments: Mapping[str, Any], before: str = before) -> str:
            return before + write(name, arguments)

        turn = renderer.tokenizer.encode(
            call(renderer.tools[0]["function"]["name"], {"order": "#1"})
        )
        if renderer.read(turn + array("I", [stop])).calls:
            return call, stop
    sys.exit(f"{renderer.tokenizer.name}: no call is read in {call('f', {})!r}")


def _with_tokens(spec: Mapping[str, Any], added: Any) -> bytes:
    tokens = list(spec["added_tokens"])
    known, next_id = (
        {token["content"] for token in tokens},
        1 + max(token["id"] for token in tokens),
    )
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    new = [text for text in dict.fromkeys(added) if text not in known]
    tokens += [
        {"id": next_id + n, "content": text, "special": True, **flags} for n, text in enumerate(new)
    ]
    return json.dumps({**spec, "added_tokens": tokens}).encode()
