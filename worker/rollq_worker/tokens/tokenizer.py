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
from pathlib import Path
from typing import Any

from rollq.errors import JobFailure, SettingsError
from rollq.events import Message
from rollq.job import NAMED_TOKENS, Json
from rollq_worker.tokens.chat_template import ChatTemplate, LookedFor
from rollq_worker.tokens.other_files import BPE, TEKKEN, TIKTOKEN, make_spec
from rollq_worker.tokens.other_files import FILES as OTHER_FILES
from rollq_worker.tokens.training_templates import template_text
from rollq_worker.tokens.vocabulary import Vocabulary

BUNDLED = Path(__file__).parent / "bundled" / "tokenizer"
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
OLD_TEMPLATE = "chat_template.json"
"""Where older models of images and text have their template."""
MORE_TEMPLATES = "additional_chat_templates"
"""A folder of further templates; `tool_use.jinja` is the one for conversations with tools."""
IMAGE_CONFIG = "preprocessor_config.json"
"""The image processor of a vision model."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


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
        """`template` is the Jinja text, or a mapping of names to texts. `image_processor`: what IMAGE_CONFIG holds.
        `hash`: of the files of which `spec` was made, if it is no file.

        Raises SettingsError for an unusable spec.
        """
        self.name = name
        self._vocabulary = Vocabulary(name, spec)
        self._named = {key: _text(config[key]) for key in NAMED_TOKENS if config.get(key) is not None}
        self.hash = hash or hashlib.sha256(spec).hexdigest()
        """Of tokenizer.json, or of the files in its place."""
        self.added = self._vocabulary.added
        self.added_tokens: dict[str, int] = {token.text: token.id for token in self.added}
        """Id by text: control tokens and tags."""
        self.vocab_size = self._vocabulary.size
        """Every id is below it."""
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
        return self._vocabulary.encode(text)

    def encode_plain(self, *texts: str) -> list[array[int]]:
        """The ids of texts that never become an added token: one array('I') per text.

        Raises JobFailure for a vocabulary that spells a control token as plain text.
        """
        return self._vocabulary.encode_plain(*texts)

    def use_fast_encoder(self) -> bool:
        """Use a faster encoder for plain text from now on, if one gives the same ids. Returns whether there is one.

        Costs about a second, so only a worker asks for it, and `rollq doctor`. All copies use it too.
        """
        return self._vocabulary.use_fast_encoder()

    @property
    def is_fast(self) -> bool:
        """Whether plain text is encoded by something faster than the tokenizer itself."""
        return self._vocabulary.is_fast

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token are left out."""
        return self._vocabulary.decode(ids, skip_special)

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

    A directory holds tokenizer.json, or one of `other_files` in its place, tokenizer_config.json, which tekken.json may
    lack, and a chat template: chat_template.jinja, or `chat_template` in tokenizer_config.json or chat_template.json;
    further ones may be in additional_chat_templates. `template` takes its place: the name of a training template, or
    the path of a file. Raises SettingsError that names the directory and what is missing or wrong.
    """
    name = "the bundled tokenizer" if where is None else where
    folder = BUNDLED if where is None else find_tokenizer(where)
    config = _object(folder / FILES[1]) if (folder / FILES[1]).is_file() else {}
    made = None if (folder / FILES[0]).is_file() else make_spec(folder, config)
    spec = made.spec if made else _read(folder / FILES[0])
    config = dict(made.config) if made else config
    if (folder / FILES[3]).is_file():
        config["generation"] = _object(folder / FILES[3])
    chosen = template_text(template) if template else _find_template(folder, config)
    images = _object(folder / IMAGE_CONFIG) if (folder / IMAGE_CONFIG).is_file() else None
    return Tokenizer(name, spec, config, chosen, images, made.hash if made else "")


def find_tokenizer(where: str) -> Path:
    """The directory of a tokenizer, downloaded if it is a hub name. Raises SettingsError when a file is missing."""
    folder = _folder(where)
    there = [file for file in (*FILES[:2], TEKKEN, TIKTOKEN, BPE[1]) if (folder / file).is_file()]
    if not there or there == [FILES[1]]:
        others = f"{TEKKEN}, {TIKTOKEN}, or {' and '.join(BPE)}"
        raise SettingsError(f"tokenizer {where}: {folder} has no {FILES[0]}, nor what one can be made of ({others})")
    if FILES[1] not in there and TEKKEN not in there:
        raise SettingsError(f"tokenizer {where}: {folder} has no {FILES[1]}")
    return folder


def _folder(where: str) -> Path:
    folder = Path(where).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or not _HUB_NAME.fullmatch(where):
        raise SettingsError(f"tokenizer {where}: no such directory, and not a hub name (owner/model) either")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                where, allow_patterns=[*FILES, *OTHER_FILES, OLD_TEMPLATE, IMAGE_CONFIG, f"{MORE_TEMPLATES}/*.jinja"]
            )
        )
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
    if template is None and (folder / OLD_TEMPLATE).is_file():
        template = _object(folder / OLD_TEMPLATE).get("chat_template")
    if isinstance(template, str) and template:
        return template
    try:
        if isinstance(template, list) and template:
            return {str(entry["name"]): str(entry["template"]) for entry in template}
    except (KeyError, TypeError) as e:
        raise SettingsError(f"{folder / FILES[1]}: chat_template is a list, but not of templates") from e
    raise SettingsError(
        f"tokenizer {folder}: no chat template, neither {FILES[2]} nor chat_template in {FILES[1]} or {OLD_TEMPLATE}"
    )


def _text(token: Json) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _eos_ids(config: Mapping[str, Json], added: Mapping[str, int]) -> tuple[int, ...]:
    named = config.get("eos_token")
    generation = config.get("generation", {}).get("eos_token_id")
    ids = [added.get(_text(named), -1)] if named is not None else []
    ids += generation if isinstance(generation, list) else [generation]
    return tuple(dict.fromkeys(id for id in ids if isinstance(id, int) and id >= 0))
