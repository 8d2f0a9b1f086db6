"""Tokenizers without tokenizer.json: their ids are those of the library that made them, and they
play.
"""

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import SettingsError
from rollq_worker.tokens.other_files import _KIMI_WORDS
from rollq_worker.tokens.selfcheck.check import check
from rollq_worker.tokens.tokenizer import BUNDLED, load_tokenizer
from tests.rollq_worker.tokens.selfcheck.test_check import TOOL

SPEC = json.loads((BUNDLED / "tokenizer.json").read_bytes())
CONFIG = json.loads((BUNDLED / "tokenizer_config.json").read_bytes())
TEMPLATE = (BUNDLED / "chat_template.jinja").read_text()
TEXTS = [
    "",
    " ",
    "\n\n",
    "Hello, World!",
    "I'LL don't HTTPServer camelCase 1234567 x\r\n\ty",
    "ied 4 ½ months",
    "🙂 e\u0301",
    "中文English混合",
    "汉字abc",
    "北京市 Pascal",
    "日本語テスト한국어",
    "<|im_end|>a<|im_start|>b",
    "ÄÖ naïve",
    "𠀀字a",
]


def write(folder: Path, config: dict[str, Any], **files: str) -> str:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture
def pair(tmp_path: Path) -> str:
    """vocab.json and merges.txt, with the template in chat_template.json."""
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in SPEC["model"]["merges"])
    added = {str(token.pop("id")): token for token in json.loads(json.dumps(SPEC["added_tokens"]))}
    return write(
        tmp_path,
        {**CONFIG, "tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added},
        vocab__json=json.dumps(SPEC["model"]["vocab"]),
        merges__txt="\n".join(["#version: 0.2", *merges]),
        chat_template__json=json.dumps({"chat_template": TEMPLATE}),
    )


@pytest.fixture
def kimi(tmp_path: Path) -> str:
    """tiktoken.model, whose config names Kimi's tokenizer."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte = {char: value for value, char in bytes_to_unicode().items()}
    tokens = sorted(SPEC["model"]["vocab"].items(), key=lambda one: one[1])
    lines = (
        f"{base64.b64encode(bytes(byte[char] for char in token)).decode()} {id}"
        for token, id in tokens
    )
    control = {
        str(len(tokens) + n): {"content": text}
        for n, text in enumerate(("<|im_start|>", "<|im_end|>"))
    }
    kimi = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    config = {
        "auto_map": kimi,
        "added_tokens_decoder": control,
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
    }
    return write(tmp_path, config, tiktoken__model="\n".join(lines))


@pytest.mark.packages
def test_vocab_and_merges_give_transformers_ids(pair: str):
    from transformers import AutoTokenizer

    tokenizer, theirs = load_tokenizer(pair), AutoTokenizer.from_pretrained(pair)
    assert [list(tokenizer.encode(text)) for text in TEXTS] == [
        theirs.encode(text) for text in TEXTS
    ]
    assert tokenizer.added_tokens == load_tokenizer().added_tokens
    assert not check(tokenizer, [TOOL]).unsupported


@pytest.mark.packages
def test_tiktoken_model_gives_tiktokens_ids(kimi: str):
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    tokenizer, ranks = load_tokenizer(kimi), load_tiktoken_bpe(f"{kimi}/tiktoken.model")
    control = tokenizer.added_tokens
    theirs = tiktoken.Encoding(
        name="k", pat_str=_KIMI_WORDS, mergeable_ranks=ranks, special_tokens=control
    )
    assert [list(tokenizer.encode(text)) for text in TEXTS] == [
        theirs.encode(text, allowed_special="all") for text in TEXTS
    ]
    assert len(control) == 258 and control["<|im_end|>"] == len(ranks) + 1
    assert not check(tokenizer, [TOOL]).unsupported


@pytest.mark.slow
def test_tekken_gives_mistral_commons_ids(tmp_path: Path):
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = Path(mistral_common.__file__).parent / "data"
    file = shutil.copy(data / "tekken_240911.json", tmp_path / "tekken.json")
    tokenizer, theirs = load_tokenizer(str(tmp_path)), Tekkenizer.from_file(file)
    plain = [text for text in TEXTS if "<|" not in text]
    assert [list(ids) for ids in tokenizer.encode_plain(*plain)] == [
        theirs.encode(text, bos=False, eos=False) for text in plain
    ]
    assert tokenizer.eos_ids == (theirs.eos_id,)
    assert check(tokenizer, [TOOL]).family.name == "mistral"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("merges.txt", "#version: 0.2", "#version: 0.3"),
        ("tokenizer_config.json", "<|im_start|>", "<|im_begin|>"),
    ],
)
@pytest.mark.packages
def test_the_hash_is_that_of_the_models_own_files(pair: str, name: str, old: str, new: str):
    one, file = load_tokenizer(pair).hash, Path(pair, name)
    assert load_tokenizer(pair).hash == one and old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert load_tokenizer(pair).hash != one


@pytest.mark.parametrize(
    ("name", "packages"), [("tekken.json", "mistral-common"), ("tiktoken.model", "tiktoken")]
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, packages: str
):
    for module in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "transformers", None)
    config = {"auto_map": "tokenization_kimi.TikTokenTokenizer"}
    write(tmp_path, config, **{name.replace(".", "__"): "{}"})
    with pytest.raises(
        SettingsError,
        match=f"{name} is read by other packages .*pip install transformers {packages}",
    ):
        load_tokenizer(str(tmp_path))


def test_another_tiktoken_model_is_refused(tmp_path: Path):
    with pytest.raises(
        SettingsError, match=r"does not tell how a text is cut into words.*save_pretrained"
    ):
        load_tokenizer(write(tmp_path, {}, tiktoken__model=""))


def test_what_may_stand_in_place_of_a_file_is_said(tmp_path: Path):
    with pytest.raises(
        SettingsError,
        match=r"has no tokenizer.json.*tekken.json, tiktoken.model, or vocab.json and",
    ):
        load_tokenizer(write(tmp_path, {}))
