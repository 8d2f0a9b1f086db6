"""One chat template: messages to the text that a model was trained on.

transformers renders the messages, because chat templates are written for its semantics. It knows no token ids.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rollq.errors import JobFailure, SettingsError
from rollq.job import Json
from rollq.trajectory import Message

TODAY = datetime(2025, 1, 1)
"""The date for templates that write one. The real date would differ between the samples of a group, and between a
journal and an episode that is resumed from it the next day."""
_CLOCK = re.compile(r"""\bstrftime_now\(\s*(['"])([^'"]*)\1\s*\)""")


class ChatTemplate:
    """A chat template. Threads may share it."""

    def __init__(self, name: str, template: Json, named: Mapping[str, str]) -> None:
        """`template` is the Jinja text, or texts by name; `named` are tokens that it may show. Raises SettingsError."""
        self._name = name
        self._text = "\n".join(template.values()) if isinstance(template, dict) else str(template)
        self._renderer = _renderer(name, template, named)

    def mentions(self, name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\b", self._text) is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Json],
    ) -> str:
        try:
            text: str = self._renderer.apply_chat_template(
                list(messages),
                tools=None if tools is None else list(tools),
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **kwargs,
            )
        except Exception as e:  # the template is foreign code: it may raise anything
            roles = " ".join(str(message.get("role")) for message in messages)
            raise JobFailure(
                f"the chat template of {self._name} cannot render [{roles}]: {type(e).__name__}: {e}"
            ) from e
        return text


def _renderer(name: str, template: Json, named: Mapping[str, str]) -> Any:
    """A transformers tokenizer with this template, these named tokens and no vocabulary: it only renders."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it warns that torch is missing
    import jinja2
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    template = {key: _dated(text) for key, text in template.items()} if isinstance(template, dict) else _dated(template)
    nothing = tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, unk_token=""))
    renderer: Any = PreTrainedTokenizerFast(tokenizer_object=nothing, chat_template=template, **named)
    try:
        renderer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    except jinja2.TemplateSyntaxError as e:
        raise SettingsError(f"tokenizer {name}: the chat template is not valid Jinja: line {e.lineno}: {e}") from e
    except Exception:  # it compiles; it may still refuse this conversation
        pass
    return renderer


def _dated(template: str) -> str:
    """The template with TODAY in place of a clock, because transformers does not let us override that function."""
    return _CLOCK.sub(lambda call: json.dumps(TODAY.strftime(call[2])), template)
