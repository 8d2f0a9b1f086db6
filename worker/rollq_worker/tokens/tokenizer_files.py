"""The files of a tokenizer: in a directory, or fetched from the hub.

A directory holds tokenizer.json, or one of `other_files` in its place, tokenizer_config.json, which
tekken.json may lack, and a chat template: chat_template.jinja, or `chat_template` in
tokenizer_config.json or chat_template.json; further ones may be in additional_chat_templates.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rollq.errors import SettingsError
from rollq.job import Json
from rollq_worker.tokens.other_files import BPE, TEKKEN, TIKTOKEN, make_spec
from rollq_worker.tokens.other_files import FILES as OTHER_FILES
from rollq_worker.tokens.training_templates import template_text

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
OLD_TEMPLATE = "chat_template.json"
"""Where older models of images and text have their template."""
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
    """Of the files in the place of tokenizer.json; "": it is there itself."""


def read_files(folder: Path, template: str | None) -> TokenizerFiles:
    """`template` takes the place of the folder's own: the name of a training template, or the path
    of a file.

    Raises SettingsError that names the directory and what is missing or wrong.
    """
    config = _object(folder / FILES[1]) if (folder / FILES[1]).is_file() else {}
    made = None if (folder / FILES[0]).is_file() else make_spec(folder, config)
    spec = made.spec if made else _read(folder / FILES[0])
    config = dict(made.config) if made else config
    if (folder / FILES[3]).is_file():
        config["generation"] = _object(folder / FILES[3])
    chosen = template_text(template) if template else _find_template(folder, config)
    images = _object(folder / IMAGE_CONFIG) if (folder / IMAGE_CONFIG).is_file() else None
    return TokenizerFiles(spec, config, chosen, images, made.hash if made else "")


def find_tokenizer(where: str) -> Path:
    """The directory of a tokenizer, downloaded if it is a hub name. Raises SettingsError when a
    file is missing.
    """
    folder = _folder(where)
    there = [file for file in (*FILES[:2], TEKKEN, TIKTOKEN, BPE[1]) if (folder / file).is_file()]
    if not there or there == [FILES[1]]:
        others = f"{TEKKEN}, {TIKTOKEN}, or {' and '.join(BPE)}"
        raise SettingsError(
            f"tokenizer {where}: {folder} has no {FILES[0]}, nor what one can be made of ({others})"
        )
    if FILES[1] not in there and TEKKEN not in there:
        raise SettingsError(f"tokenizer {where}: {folder} has no {FILES[1]}")
    return folder


def _folder(where: str) -> Path:
    folder = Path(where).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or not _HUB_NAME.fullmatch(where):
        raise SettingsError(
            f"tokenizer {where}: no such directory, and not a hub name (owner/model) either"
        )
    from huggingface_hub import snapshot_download

    more = f"{MORE_TEMPLATES}/*.jinja"
    patterns = [*FILES, *OTHER_FILES, OLD_TEMPLATE, IMAGE_CONFIG, more]
    try:
        return Path(snapshot_download(where, allow_patterns=patterns))
    except Exception as e:  # the hub's client raises errors of several libraries
        first_line = str(e).strip().partition("\n")[0]
        raise SettingsError(
            f"tokenizer {where}: no such directory, and the hub did not deliver it "
            f"({type(e).__name__}: {first_line}): give a directory with {FILES[0]}, or a model "
            "that this machine can download"
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
        paths = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
        more = {path.stem: _text_of(path) for path in paths}
        default = _text_of(folder / FILES[2])
        return {**more, "default": default} if more else default
    template = config.get("chat_template")
    if template is None and (folder / OLD_TEMPLATE).is_file():
        template = _object(folder / OLD_TEMPLATE).get("chat_template")
    if isinstance(template, str) and template:
        return template
    if isinstance(template, list) and template:
        try:
            return {str(entry["name"]): str(entry["template"]) for entry in template}
        except (KeyError, TypeError) as e:
            raise SettingsError(
                f"{folder / FILES[1]}: chat_template is a list, but not of templates"
            ) from e
    raise SettingsError(
        f"tokenizer {folder}: no chat template, neither {FILES[2]} nor chat_template in "
        f"{FILES[1]} or {OLD_TEMPLATE}"
    )
