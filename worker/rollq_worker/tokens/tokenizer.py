"""One model's vocabulary and chat template: text to token ids and back.

Ids come from tokenizer.json itself, never from a transformers class that might rewrite it. It does not know what is
trusted in a text: see `rollq_worker.tokens.injection_guard`.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import copy
import hashlib
import json
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.errors import JobFailure, SettingsError
from rollq.job import NAMED_TOKENS, Json
from rollq.trajectory import Message
from rollq_worker.tokens.chat_template import ChatTemplate, LookedFor
from rollq_worker.tokens.encoders import MAX_LENGTH, Encode, fast_encoder
from rollq_worker.tokens.training_templates import template_text

if TYPE_CHECKING:
    import tokenizers

BUNDLED = Path(__file__).parent / "bundled" / "tokenizer"
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
MORE_TEMPLATES = "additional_chat_templates"
"""A folder of further templates; `tool_use.jinja` is the one for conversations with tools."""
IMAGE_CONFIG = "preprocessor_config.json"
"""The image processor of a vision model."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
LONG = 1000
"""Number of ids from which decoding uses the batch form, which releases the interpreter."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = re.compile(r"[\s\u2581]+")
"""White space; SentencePiece writes a space as U+2581."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that its text always becomes, whatever comes before or after it."""

    text: str
    id: int
    lstrip: bool
    """Whether it swallows the white space before it."""
    rstrip: bool
    """Whether it swallows the white space after it."""


class Tokenizer:
    """A vocabulary (tokenizer.json) and a chat template. Threads may share it."""

    def __init__(
        self,
        name: str,
        spec: bytes,
        config: Mapping[str, Json],
        template: Json,
        image_processor: Mapping[str, Json] | None = None,
    ) -> None:
        """`template` is the Jinja text, or a mapping of names to texts. `image_processor`: what IMAGE_CONFIG holds.

        Raises SettingsError for an unusable spec.
        """
        self.name = name
        self._spec = spec
        self._fast: Encode | None = None
        self._full = _parse(name, spec)
        self._plain, self._spaces = _without_controls(self._full)
        self._named = {key: _text(config[key]) for key in NAMED_TOKENS if config.get(key) is not None}
        self.hash = hashlib.sha256(spec).hexdigest()
        """Of tokenizer.json."""
        self.added = tuple(
            AddedToken(text=token.content, id=id, lstrip=token.lstrip, rstrip=token.rstrip)
            for id, token in sorted(self._full.get_added_tokens_decoder().items())
            if id not in self._spaces
        )
        self.added_tokens: dict[str, int] = {token.text: token.id for token in self.added}
        """Id by text: control tokens and tags."""
        self.vocab_size: int = 1 + max(self._full.get_vocab(with_added_tokens=True).values())
        """Every id is below it."""
        self._added_ids = frozenset(self.added_tokens.values())
        self.eos_ids = _eos_ids(config, self.added_tokens)
        """The ids that the model's files name as its end of turn."""
        self.image_processor = image_processor
        """The configuration of the image processor; None for a model of text."""
        self._set_template(template)

    def with_template(self, template: Json) -> Tokenizer:
        """The same vocabulary, shared, with another chat template. Raises SettingsError for one that is not Jinja."""
        other = copy.copy(self)
        other._set_template(template)
        return other

    def _set_template(self, template: Json) -> None:
        self._template = ChatTemplate(self.name, template, self._named)
        images = [self.image_processor] if self.image_processor else []
        shaping = json.dumps([template, self._named, self.eos_ids, *images], sort_keys=True)
        self.template_hash = hashlib.sha256(shaping.encode()).hexdigest()
        """Of the template, of the named tokens that it may show, of where turns end, and of the image processor."""

    def encode(self, text: str) -> array[int]:
        """array('I'): the ids of a rendered template; added tokens are recognised wherever they stand."""
        return _encode(self._full, [text])[0]

    def encode_plain(self, *texts: str) -> list[array[int]]:
        """The ids of texts that never become an added token: one array('I') per text.

        Raises JobFailure for a vocabulary that spells a control token as plain text.
        """
        fast = self._fast
        if fast is not None and all(len(text) <= MAX_LENGTH for text in texts):
            encoded = [array("I", fast(text)) for text in _without_surrogates(texts)]
        else:
            encoded = _encode(self._plain, texts)
        for ids in encoded:
            if not self._added_ids.isdisjoint(ids):
                name = next(token.text for token in self.added if token.id in ids)
                raise JobFailure(f"the vocabulary of {self.name} makes {name!r} of plain text: it is not safe to use")
        return encoded

    def use_fast_encoder(self) -> bool:
        """Use a faster encoder for plain text from now on, if one gives the same ids. Returns whether there is one.

        Costs about a second, so only a worker asks for it, and `rollq doctor`. Copies made later use it too.
        """
        if self._fast is None:
            self._fast = fast_encoder(self._spec, self._plain)
        return self._fast is not None

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token are left out."""
        if len(ids) < LONG:
            return self._full.decode(list(ids), skip_special_tokens=skip_special)
        return self._full.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]

    @property
    def arguments(self) -> frozenset[str]:
        """The names of the arguments that the chat template reads."""
        return self._template.arguments

    @property
    def looked_for(self) -> LookedFor:
        """The texts for which the chat template may look in messages."""
        return self._template.looked_for

    @property
    def given(self) -> Mapping[str, Json]:
        """The arguments with which the chat template always renders."""
        return self._template.given

    def with_arguments(self, given: Mapping[str, Json]) -> Tokenizer:
        """This tokenizer, whose chat template always renders with these arguments.

        Raises JobFailure for a name that the template does not read, and for a value with a control token in it.
        """
        if not given:
            return self
        text = json.dumps(given, sort_keys=True, ensure_ascii=False)
        for token in self.added_tokens:
            if token and json.dumps(token, ensure_ascii=False)[1:-1] in text:
                raise JobFailure(f"template_kwargs: {text:.200} holds the control token {token}")
        found = copy.copy(self)
        found._template = self._template.with_arguments(given)
        found.template_hash = hashlib.sha256(f"{self.template_hash} {text}".encode()).hexdigest()
        return found

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
    """The tokenizer of a directory or a hub name; None: the one in the package.

    A directory holds tokenizer.json, tokenizer_config.json and a chat template: chat_template.jinja, or `chat_template`
    in tokenizer_config.json; further ones may be in additional_chat_templates. `template` takes its place: the name of
    a training template, or the path of a file. Raises SettingsError that names the directory and what is missing or
    wrong.
    """
    name = "the bundled tokenizer" if where is None else where
    folder = BUNDLED if where is None else find_tokenizer(where)
    spec = _read(folder / FILES[0])
    config = _object(folder / FILES[1])
    if (folder / FILES[3]).is_file():
        config["generation"] = _object(folder / FILES[3])
    chosen = template_text(template) if template else _find_template(folder, config)
    images = _object(folder / IMAGE_CONFIG) if (folder / IMAGE_CONFIG).is_file() else None
    return Tokenizer(name, spec, config, chosen, images)


def find_tokenizer(where: str) -> Path:
    """The directory of a tokenizer, downloaded if it is a hub name. Raises SettingsError when a file is missing."""
    folder = _folder(where)
    for file in FILES[:2]:
        if not (folder / file).is_file():
            raise SettingsError(f"tokenizer {where}: {folder} has no {file}; it must hold {FILES[0]} and {FILES[1]}")
    return folder


def _folder(where: str) -> Path:
    folder = Path(where).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or not _HUB_NAME.fullmatch(where):
        raise SettingsError(f"tokenizer {where}: no such directory, and not a hub name (owner/model) either")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(where, allow_patterns=[*FILES, IMAGE_CONFIG, f"{MORE_TEMPLATES}/*.jinja"]))
    except Exception as e:  # the hub's client raises errors of several libraries
        raise SettingsError(
            f"tokenizer {where}: no such directory, and the hub did not deliver it ({type(e).__name__}:"
            f" {str(e).strip().partition(chr(10))[0]}): give a directory with {FILES[0]}, or a model that this machine"
            " can download"
        ) from e


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e}") from e


def _text_of(path: Path) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError as e:
        raise SettingsError(f"{path} is not UTF-8: {e}") from e


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as e:
        raise SettingsError(f"{path} is not valid JSON: {e}") from e
    if not isinstance(value, dict):
        raise SettingsError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def _find_template(folder: Path, config: Mapping[str, Json]) -> Json:
    """The template's text, or texts by name where there are several. Raises SettingsError."""
    if (folder / FILES[2]).is_file():
        more = {path.stem: _text_of(path) for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
        default = _text_of(folder / FILES[2])
        return {**more, "default": default} if more else default
    template = config.get("chat_template")
    if isinstance(template, str) and template:
        return template
    try:
        if isinstance(template, list) and template:
            return {str(entry["name"]): str(entry["template"]) for entry in template}
    except (KeyError, TypeError) as e:
        raise SettingsError(f"{folder / FILES[1]}: chat_template is a list, but not of templates") from e
    raise SettingsError(f"tokenizer {folder}: no chat template, neither {FILES[2]} nor chat_template in {FILES[1]}")


def _parse(name: str, spec: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(spec)
    except Exception as e:  # tokenizers raises bare Exception
        raise SettingsError(f"tokenizer {name}: {FILES[0]} is not a tokenizer: {e}") from e
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_controls(full: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, frozenset[int]]:
    """The same vocabulary (shared, not copied) without post-processor and control tokens; and the ids of white space.

    In some vocabularies (Gemma's) rows of spaces and line ends are added tokens. They are text, so they stay.
    """
    import tokenizers

    plain = tokenizers.Tokenizer(full.model)
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        plain.pre_tokenizer = _in_the_middle(full.pre_tokenizer)
    spaces = {
        id: token
        for id, token in full.get_added_tokens_decoder().items()
        if not token.special and _BLANK.fullmatch(token.content) and full.model.token_to_id(token.content) == id
    }
    plain.add_tokens(list(spaces.values()))
    return plain, frozenset(spaces)


def _in_the_middle(splitter: tokenizers.pre_tokenizers.PreTokenizer) -> tokenizers.pre_tokenizers.PreTokenizer:
    """The pre-tokenizer for texts behind a control token: SentencePiece may put a space in front of the first text.

    Mistral 7B's does. The self-check finds templates that begin with plain text.
    """
    import tokenizers

    state = splitter.__getstate__().decode()
    if '"prepend_scheme":"first"' not in state:
        return splitter
    model = '{"type":"WordLevel","vocab":{"":0},"unk_token":""}'
    state = state.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
    parts = f'{{"version":"1.0","added_tokens":[],"pre_tokenizer":{state},"model":{model}}}'
    moved: tokenizers.pre_tokenizers.PreTokenizer = tokenizers.Tokenizer.from_str(parts).pre_tokenizer
    return moved


def _encode(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[array[int]]:
    # encode() holds the GIL for the whole call; the batch form does not.
    try:
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):  # lone surrogates, which UTF-8 cannot write
        encoded = tokenizer.encode_batch_fast(_without_surrogates(texts), add_special_tokens=False)
    return [array("I", one.ids) for one in encoded]


def _without_surrogates(texts: Sequence[str]) -> list[str]:
    return [text if text.isascii() else _SURROGATE.sub("\ufffd", text) for text in texts]


def _text(token: Json) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _eos_ids(config: Mapping[str, Json], added: Mapping[str, int]) -> tuple[int, ...]:
    named = config.get("eos_token")
    generation = config.get("generation", {}).get("eos_token_id")
    ids = [added.get(_text(named), -1)] if named is not None else []
    ids += generation if isinstance(generation, list) else [generation]
    return tuple(dict.fromkeys(id for id in ids if isinstance(id, int) and id >= 0))
