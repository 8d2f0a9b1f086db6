"""Tokenizers that come without tokenizer.json, made into one: by transformers, and by
mistral-common for Mistral's.

| files | models | by |
|---|---|---|
| tekken.json | Mistral Small 3.2, Devstral 2 | transformers and mistral-common |
| tiktoken.model | Kimi K2, K2.5, K2.6 | transformers and tiktoken |
| vocab.json, merges.txt | older Qwen, GPT-2 | transformers |

No code of a model's repository is run. transformers is imported only here, and only for such a
tokenizer.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rollq.errors import SettingsError
from rollq.job import Json

TEKKEN = "tekken.json"
TIKTOKEN = "tiktoken.model"
VOCAB = "vocab.json"
MERGES = "merges.txt"
BPE = (VOCAB, MERGES)
FILES = (TEKKEN, TIKTOKEN, *BPE)
_HAN, _UPPER, _LOWER = r"\p{Han}", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI_WORDS = "|".join(
    (
        rf"[{_HAN}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^{_HAN}]]*[{_LOWER}&&[^{_HAN}]]+{_SHORT}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^{_HAN}]]+[{_LOWER}&&[^{_HAN}]]*{_SHORT}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Words of a text by Kimi's tokenizer, whose files do not tell."""
_KIMI_RESERVED = 258
"""Control tokens behind Kimi's vocabulary. Those without a name are `<|reserved_token_ID|>`."""


class Made(NamedTuple):
    """The content that tokenizer.json and tokenizer_config.json would have."""

    spec: bytes
    config: Mapping[str, Json]
    hash: str
    """SHA-256 of the model's own files and of the added tokens, because another version of
    transformers may write another spec.
    """


def make_spec(folder: Path, config: Mapping[str, Json]) -> Made | None:
    """The tokenizer of a folder without tokenizer.json; None where it has none of FILES.

    Raises SettingsError when a package is missing, or the files cannot be read.
    """
    make, names = _maker(folder)
    if make is None:
        return None
    try:
        spec, missing_config = make(folder, config)
    except ImportError as e:
        packages = "transformers mistral-common" if TEKKEN in names else "transformers tiktoken"
        raise SettingsError(
            f"tokenizer {folder}: {names[0]} is read by other packages ({e}): pip install "
            f"{packages}"
        ) from e
    except SettingsError:
        raise
    except Exception as e:  # for unreadable files the libraries raise errors of many kinds
        raise SettingsError(
            f"tokenizer {folder}: {' and '.join(names)} cannot be read: {type(e).__name__}: {e}"
        ) from e
    added = sorted((token["id"], token["content"]) for token in json.loads(spec)["added_tokens"])
    content = b"".join((folder / name).read_bytes() for name in names) + json.dumps(added).encode()
    digest = hashlib.sha256(content).hexdigest()
    return Made(spec.encode(), {**missing_config, **config}, digest)


Maker = Callable[[Path, Mapping[str, Json]], tuple[str, Mapping[str, Json]]]
"""The text of tokenizer.json, and what a configuration lacks."""


def _maker(folder: Path) -> tuple[Maker | None, tuple[str, ...]]:
    makers: tuple[tuple[Maker, tuple[str, ...]], ...] = (
        (_tekken, (TEKKEN,)),
        (_kimi, (TIKTOKEN,)),
        (_bpe, BPE),
    )
    return next(
        (one for one in makers if all((folder / name).is_file() for name in one[1])), (None, ())
    )


def _tekken(folder: Path, config: Mapping[str, Json]) -> tuple[str, Mapping[str, Json]]:
    from transformers.integrations.mistral import convert_tekken_tokenizer

    return _spec_and_config(convert_tekken_tokenizer(str(folder / TEKKEN)))


def _bpe(folder: Path, config: Mapping[str, Json]) -> tuple[str, Mapping[str, Json]]:
    from transformers import AutoTokenizer

    return _spec_and_config(
        AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    )


def _spec_and_config(made: Any) -> tuple[str, Mapping[str, Json]]:
    named = {key: value for key, value in made.special_tokens_map.items() if isinstance(value, str)}
    template = {"chat_template": made.chat_template} if made.chat_template else {}
    return made.backend_tokenizer.to_str(), {**named, **template}


def _kimi(folder: Path, config: Mapping[str, Json]) -> tuple[str, Mapping[str, Json]]:
    if "tokenization_kimi.TikTokenTokenizer" not in json.dumps(config.get("auto_map")):
        raise SettingsError(
            f"tokenizer {folder}: {TIKTOKEN} does not tell how a text is cut into words, which "
            "rollq knows of Kimi's only: have transformers write a tokenizer.json beside it "
            "(save_pretrained)"
        )
    from transformers.convert_slow_tokenizer import TikTokenConverter

    path = str(folder / TIKTOKEN)
    size = len(TikTokenConverter.load_tiktoken_bpe(path))
    named = {
        int(id): token["content"] for id, token in config.get("added_tokens_decoder", {}).items()
    }
    control = [
        named.get(id, f"<|reserved_token_{id}|>") for id in range(size, size + _KIMI_RESERVED)
    ]
    made = TikTokenConverter(path, pattern=_KIMI_WORDS, extra_special_tokens=control).converted()
    return made.to_str(), {}
