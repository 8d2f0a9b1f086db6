"""POST /tokenize: the ids of a text, or of a conversation in the chat template.

`add_special_tokens` has no effect, because the tokenizer has no tokens that begin or end a text.
"""

from collections.abc import Mapping
from typing import Any

from rollq.errors import JobFailure
from rollq_worker.replay_engine.http_bodies import are_texts, bad_body, bad_openai_request, is_text
from rollq_worker.tokens.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool", "function", "developer", "latest_reminder", "root")
UNSUPPORTED = ("tools", "chat_template_kwargs", "continue_final_message")
FLAGS = ("add_special_tokens", "add_generation_prompt", "continue_final_message")


def tokenize(body: Mapping[str, Any], tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """The reply, as SGLang gives it. A list of texts gets lists of ids and counts. Raises HttpError."""
    prompt: Any = body.get("prompt")
    messages = body.get("messages")
    for flag in FLAGS:
        if not isinstance(body.get(flag, False), bool | None):
            raise bad_body(flag, "Input should be a valid boolean")
    if (prompt is None) == (messages is None):
        raise bad_body("", "Value error, Exactly one of prompt or messages must be provided.")
    if messages is not None:
        prompt = _rendered(body, messages, tokenizer)
    if not are_texts(prompt):
        raise bad_body("prompt", "Input should be a valid string")
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt).tolist()
        return {"tokens": ids, "count": len(ids), "max_model_len": context}
    each = [tokenizer.encode(text).tolist() for text in prompt]
    return {"tokens": each, "count": list(map(len, each)), "max_model_len": context}


def _rendered(body: Mapping[str, Any], messages: object, tokenizer: Tokenizer) -> str:
    if not isinstance(messages, list):
        raise bad_body("messages", "Input should be a valid list")
    if not messages:
        raise bad_openai_request("Messages cannot be empty.")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise bad_body("messages", f"Value error, role must be one of {', '.join(ROLES)}")
    if any(body.get(name) for name in UNSUPPORTED) or any(message.get("tool_calls") for message in messages):
        unsupported = ", ".join((*UNSUPPORTED, "tool_calls"))
        raise bad_openai_request(f"The replay engine tokenizes conversations without {unsupported}.")
    opens = body.get("add_generation_prompt")
    shown = [{**message, "content": _text(message.get("content"))} for message in messages]
    if opens is None and shown[-1]["role"] == "assistant":
        shown[-1]["role"] = "user"  # SGLang never lets an assistant answer itself
    try:
        return tokenizer.render(shown, add_generation_prompt=opens is not False)
    except JobFailure as e:
        raise bad_openai_request(str(e)) from e


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return " ".join(part["text"] for part in content if isinstance(part, dict) and is_text(part.get("text")))
