"""One model's vocabulary and chat template: text to token ids and back.

Ids come from tokenizer.json itself, never from a transformers class that might rewrite it. It does
not know what is trusted in a text: see `rollq_worker.tokens.injection_guard`.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import copy
import hashlib
import json
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.errors import JobFailure, SettingsError
from rollq.events import Message
from rollq.job import NAMED_TOKENS, Json
from rollq_worker.tokens.chat_template import ChatTemplate
from rollq_worker.tokens.tokenizer_files import find_tokenizer, read_files

if TYPE_CHECKING:
    import tokenizers

BUNDLED = Path(__file__).parent / "bundled" / "tokenizer"
CACHED_TEXTS = 1024
"""Number of plain texts whose ids are kept. The rollouts of a group make the same calls, so they
see the same results.
"""
LONGEST_CACHED = 16_384
"""Characters of the longest text whose ids are kept, so that all take a few MB."""
BATCH_DECODE_FROM = 1000
"""Number of ids from which decoding uses the batch form, which releases the interpreter."""
_ENCODERS = ThreadPoolExecutor(os.cpu_count(), "encode")
"""Few threads: each thread that encodes keeps memory of the library's, and a worker has a thousand.
"""
ENCODE_ALONE_FROM = 1_000_000
"""Characters of texts of which only one is encoded at a time: the library takes about 100 bytes for
each.
"""
_LARGE_ENCODER = ThreadPoolExecutor(1, "encode-large")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = re.compile(r"[\s\u2581]+")
"""White space; SentencePiece writes a space as U+2581."""


class Tokenizer:
    """A vocabulary (tokenizer.json) and a chat template. Threads may share it."""

    def __init__(
        self,
        name: str,
        spec: bytes,
        config: Mapping[str, Json],
        template: Json,
        image_processor: Mapping[str, Json] | None = None,
        hash: str = "",
    ) -> None:
        """The arguments are those of `TokenizerFiles`. Raises SettingsError for an
        unusable spec.
        """
        self.name = name
        self._full = _read(name, spec)
        plain, blank_ids = _without_controls(self._full)
        self._plain = plain
        """The vocabulary for plain text."""
        added = {
            id: token
            for id, token in sorted(self._full.get_added_tokens_decoder().items())
            if id not in blank_ids
        }
        self.added = list(added.values())
        """Tokens that their text always becomes, whatever comes before or after it: control tokens
        and tags.
        """
        self.added_tokens: dict[str, int] = {token.content: id for id, token in added.items()}
        """Ids of the added tokens by text."""
        self._added_ids = frozenset(added)
        self.vocab_size: int = 1 + max(self._full.get_vocab(with_added_tokens=True).values())
        """Every id is below it."""
        self._encode_plain_cached = lru_cache(CACHED_TEXTS)(self._encode_plain)
        self._named = _named_tokens(name, config)
        self.hash = hash or hashlib.sha256(spec).hexdigest()
        """SHA-256 of tokenizer.json, or of the files that it was made from."""
        generation = config.get("generation")
        self.eos_ids = _eos_ids(self._named.get("eos_token"), generation, self.added_tokens)
        """The ids that the model's files name as its end of turn."""
        self.image_processor = image_processor
        """The configuration of the image processor; None for a model of text."""
        self._set_template(template)

    def with_template(self, template: Json) -> Tokenizer:
        """A copy with another chat template. Raises SettingsError for one that is not Jinja.

        It shares the vocabulary.
        """
        other = copy.copy(self)
        other._set_template(template)
        return other

    def _set_template(self, template: Json) -> None:
        self._template = ChatTemplate(self.name, template, self._named)
        images = [self.image_processor] if self.image_processor else []
        shaping = json.dumps([template, self._named, self.eos_ids, *images], sort_keys=True)
        self.template_hash = hashlib.sha256(shaping.encode()).hexdigest()
        """SHA-256 of the template, the named tokens that it may show, the ends of turns and the
        image processor.
        """

    def encode(self, text: str) -> array[int]:
        """array('I'): the ids of a rendered template; added tokens are recognised wherever they
        stand.
        """
        return _encode(self._full, [text])[0]

    def encode_plain(self, *texts: str) -> list[array[int]]:
        """The ids of texts that never become an added token: one array('I') per text.

        Raises JobFailure for a vocabulary that spells a control token as plain text.
        """
        encoded = []
        for text in texts:
            if len(text) <= LONGEST_CACHED:
                encoded.append(self._encode_plain_cached(text)[:])
            else:
                encoded.append(self._encode_plain(text))
        return encoded

    def _encode_plain(self, text: str) -> array[int]:
        [ids] = _encode(self._plain, [text])
        if not self._added_ids.isdisjoint(ids):
            name = next(text for text, id in self.added_tokens.items() if id in ids)
            raise JobFailure(
                f"the vocabulary of {self.name} makes {name!r} of plain text: it is not safe to use"
            )
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token are left
        out.
        """
        if len(ids) < BATCH_DECODE_FROM:
            return self._full.decode(list(ids), skip_special_tokens=skip_special)
        return self._full.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]

    def reencode(self, turns: Sequence[Sequence[int]]) -> list[array[int]]:
        """Encodes the text of each turn again, as training on text would. The ids, one array('I')
        per turn, are only compared, never trained on.
        """
        return _encode(self._full, [self.decode(ids) for ids in turns])

    @property
    def arguments(self) -> frozenset[str]:
        """The names of the arguments that the chat template reads."""
        return self._template.arguments

    @property
    def fixed_arguments(self) -> Mapping[str, Json]:
        """The arguments with which the chat template always renders."""
        return self._template.fixed_arguments

    def with_arguments(self, arguments: Mapping[str, Json]) -> Tokenizer:
        """A copy whose chat template always renders with these arguments.

        Raises JobFailure for a name that the template does not read, and for a value with a control
        token in it.
        """
        if not arguments:
            return self
        text = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
        for token in self.added_tokens:
            if token and json.dumps(token, ensure_ascii=False)[1:-1] in text:
                raise JobFailure(f"template_kwargs: {text:.200} holds the control token {token}")
        other = copy.copy(self)
        other._template = self._template.with_arguments(arguments)
        other.template_hash = hashlib.sha256(f"{self.template_hash} {text}".encode()).hexdigest()
        return other

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Json,
    ) -> str:
        """The chat template's text. Raises JobFailure when the template refuses or breaks."""
        return self._template.render(messages, tools, add_generation_prompt, kwargs)


def load_tokenizer(where: str | None = None, template: str | None = None) -> Tokenizer:
    """The tokenizer of a directory or a hub name; None stands for the one in the package.

    `template`: see `read_files`.

    Raises SettingsError that names the directory and what is missing or wrong.
    """
    if where is None:
        return Tokenizer("the bundled tokenizer", *read_files(BUNDLED, template))
    return Tokenizer(where, *read_files(find_tokenizer(where), template))


def _named_tokens(name: str, config: Mapping[str, Json]) -> dict[str, str]:
    """The texts of the tokens that tokenizer_config.json names. Raises SettingsError."""
    texts: dict[str, str] = {}
    for key in NAMED_TOKENS:
        token = config.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            texts[key] = text
        elif token is not None:
            raise SettingsError(
                f"tokenizer {name}: {key} in tokenizer_config.json must be a text, or an object "
                f"with a text as its content, not {token!s:.80}"
            )
    return texts


def _eos_ids(
    eos_token: str | None, generation: Json, added_tokens: Mapping[str, int]
) -> tuple[int, ...]:
    """The ids of the end-of-turn token and of those in generation_config.json."""
    ids: list[Json] = []
    if eos_token is not None:
        ids.append(added_tokens.get(eos_token))
    eos_ids = generation.get("eos_token_id") if isinstance(generation, dict) else None
    ids += eos_ids if isinstance(eos_ids, list) else [eos_ids]
    return tuple(dict.fromkeys(id for id in ids if type(id) is int and id >= 0))


def _read(name: str, spec: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(spec)
    except Exception as e:  # tokenizers raises bare Exception
        raise SettingsError(f"tokenizer {name}: tokenizer.json is not a tokenizer: {e}") from e
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_controls(full: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, frozenset[int]]:
    """The vocabulary (shared, not copied) without post-processor and control tokens; and the ids of
    white space.

    In some vocabularies rows of spaces and line ends are added tokens: inside the model's own one
    (Gemma), or right behind it (GPT-NeoX). They are text, so they stay.
    """
    import tokenizers

    plain = tokenizers.Tokenizer(full.model)
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        plain.pre_tokenizer = _in_the_middle(full.pre_tokenizer)
    spaces = {}
    next_id = full.get_vocab_size(with_added_tokens=False)  # of a token that the model lacks
    for id, token in sorted(full.get_added_tokens_decoder().items()):
        if token.special or not _BLANK.fullmatch(token.content):
            continue
        id_in_model = full.model.token_to_id(token.content)
        if id_in_model == id or (id_in_model is None and id == next_id):
            spaces[id] = token
            next_id += id_in_model is None
    plain.add_tokens(list(spaces.values()))
    return plain, frozenset(spaces)


def _in_the_middle(
    splitter: tokenizers.pre_tokenizers.PreTokenizer,
) -> tokenizers.pre_tokenizers.PreTokenizer:
    """The pre-tokenizer for text behind a control token. SentencePiece (Mistral 7B) puts a space
    before the first text of an input; here no text is first.

    The self-check finds templates that begin with plain text.
    """
    import tokenizers

    carrier = tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, unk_token=""))
    carrier.pre_tokenizer = splitter
    spec = json.loads(carrier.to_str(), object_hook=_never_first)
    carrier = tokenizers.Tokenizer.from_str(json.dumps(spec))
    changed: tokenizers.pre_tokenizers.PreTokenizer = carrier.pre_tokenizer
    return changed


def _never_first(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("prepend_scheme") == "first":
        return part | {"prepend_scheme": "never"}
    return part


def _encode(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> list[array[int]]:
    encoders = _LARGE_ENCODER if sum(map(len, texts)) > ENCODE_ALONE_FROM else _ENCODERS
    return encoders.submit(lambda: [_encode_one(tokenizer, text) for text in texts]).result()


def _encode_one(tokenizer: tokenizers.Tokenizer, text: str) -> array[int]:
    # encode() holds the GIL all the time; the batch form does not.
    try:
        [encoded] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):  # lone surrogates, which UTF-8 cannot write
        return _encode_one(tokenizer, _SURROGATE.sub("\ufffd", text))
    return array("I", encoded.ids)
