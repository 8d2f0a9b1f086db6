"""The files of a tokenizer: in a directory, or fetched from the hub.

A directory holds
- tokenizer.json, or one of `other_files`;
- tokenizer_config.json, which may be missing beside tekken.json;
- a chat template: chat_template.jinja, or `chat_template` in tokenizer_config.json or
  chat_template.json;
- further templates in additional_chat_templates, if there are several.
"""

import json
import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rollq.errors import SettingsError
from rollq.job import Json
from rollq_worker.tokens.other_files import BPE, MERGES, TEKKEN, TIKTOKEN, make_spec
from rollq_worker.tokens.other_files import FILES as OTHER_FILES
from rollq_worker.tokens.training_templates import template_text

SPEC = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"
FILES = (SPEC, CONFIG, TEMPLATE, GENERATION_CONFIG)
OLD_TEMPLATE = "chat_template.json"
"""File in which older models of images and text have their template."""
MORE_TEMPLATES = "additional_chat_templates"
"""A folder of further templates; `tool_use.jinja` is the one for conversations with tools."""
IMAGE_CONFIG = "preprocessor_config.json"
"""The image processor of a vision model."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class TokenizerFiles(NamedTuple):
    """The content of the files."""

    spec: bytes
    """tokenizer.json."""
    config: Mapping[str, Json]
    """tokenizer_config.json, and generation_config.json as its entry `generation`."""
    template: Json
    """The chat template's Jinja text, or texts by name."""
    image_processor: Mapping[str, Json] | None
    hash: str
    """Hash of the files that tokenizer.json was made from; "" where it exists."""


def read_files(folder: Path, template: str | None) -> TokenizerFiles:
    """`template` takes the place of the folder's own: the name of a training template, or the path
    of a file.

    Raises SettingsError that names the directory and what is missing or wrong.
    """
    config = _object_if_there(folder / CONFIG) or {}
    made = None if (folder / SPEC).is_file() else make_spec(folder, config)
    spec_hash = ""
    if made is None:
        spec = _read(folder / SPEC)
    else:
        spec = made.spec
        spec_hash = made.hash
        config = dict(made.config)
    generation = _object_if_there(folder / GENERATION_CONFIG)
    if generation is not None:
        config["generation"] = generation
    chosen = template_text(template) if template else _find_template(folder, config)
    image_processor = _object_if_there(folder / IMAGE_CONFIG)
    return TokenizerFiles(spec, config, chosen, image_processor, spec_hash)


def find_tokenizer(where: str) -> Path:
    """The directory of a tokenizer, downloaded if it is a hub name. Raises SettingsError when a
    file is missing.
    """
    folder = _folder(where)
    if not any((folder / file).is_file() for file in (SPEC, TEKKEN, TIKTOKEN, MERGES)):
        others = f"{TEKKEN}, {TIKTOKEN}, or {' and '.join(BPE)}"
        raise SettingsError(
            f"tokenizer {where}: {folder} has no {SPEC}, nor what one can be made of ({others})"
        )
    if not any((folder / file).is_file() for file in (CONFIG, TEKKEN)):
        raise SettingsError(f"tokenizer {where}: {folder} has no {CONFIG}")
    return folder


def _folder(where: str) -> Path:
    folder = Path(os.path.expanduser(where))
    if os.path.isdir(folder):  # unlike Path's, it takes any text
        return folder
    if os.path.exists(folder) or not _HUB_NAME.fullmatch(where):
        raise SettingsError(
            f"tokenizer {where}: no such directory, and not a hub name (owner/model) either"
        )
    from huggingface_hub import snapshot_download

    further_templates = f"{MORE_TEMPLATES}/*.jinja"
    patterns = [*FILES, *OTHER_FILES, OLD_TEMPLATE, IMAGE_CONFIG, further_templates]
    try:
        return Path(snapshot_download(where, allow_patterns=patterns))
    except Exception as e:  # the hub's client raises errors of several libraries
        first_line = str(e).strip().partition("\n")[0]
        raise SettingsError(
            f"tokenizer {where}: no such directory, and the hub did not deliver it "
            f"({type(e).__name__}: {first_line}): give a directory with {SPEC}, or a model "
            "that this machine can download"
        ) from e


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e}") from e


def _read_text(path: Path) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError as e:
        raise SettingsError(f"{path} is not UTF-8: {e}") from e


def _object_if_there(path: Path) -> dict[str, Any] | None:
    return _read_object(path) if path.is_file() else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as e:
        raise SettingsError(f"{path} is not valid JSON: {e}") from e
    if not isinstance(value, dict):
        raise SettingsError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def _find_template(folder: Path, config: Mapping[str, Json]) -> Json:
    """The template's text, or texts by name where there are several. Raises SettingsError."""
    if (folder / TEMPLATE).is_file():
        paths = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
        further = {path.stem: _read_text(path) for path in paths}
        default = _read_text(folder / TEMPLATE)
        return {**further, "default": default} if further else default
    source = folder / CONFIG
    template = config.get("chat_template")
    if template is None and (folder / OLD_TEMPLATE).is_file():
        source = folder / OLD_TEMPLATE
        template = _read_object(source).get("chat_template")
    if isinstance(template, str) and template:
        return template
    if isinstance(template, list) and template:
        try:
            return {str(entry["name"]): str(entry["template"]) for entry in template}
        except (KeyError, TypeError) as e:
            raise SettingsError(f"{source}: chat_template is a list, but not of templates") from e
    raise SettingsError(
        f"tokenizer {folder}: no chat template, neither {TEMPLATE} nor chat_template in "
        f"{CONFIG} or {OLD_TEMPLATE}"
    )
