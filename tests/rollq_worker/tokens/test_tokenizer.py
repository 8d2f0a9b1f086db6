"""Text to ids and back, on the bundled vocabulary and on the real Qwen one."""

import hashlib
import json
import re
import shutil
import unicodedata
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import JobFailure, SettingsError
from rollq_worker.tokens.injection_guard import ControlTokens, Guard
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.check import check
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer
from tests.rollq_worker.tokens.bundled.train_tokenizer import train
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_tokenizer


@pytest.fixture(scope="module")
def bundled() -> Tokenizer:
    return load_tokenizer()


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    return qwen_tokenizer()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "model"))


def test_the_golden_encodings_of_the_real_vocabulary(
    qwen: Tokenizer, golden_encodings: list[tuple[str, list[int]]]
):
    assert len(golden_encodings) == 47
    for text, ids in golden_encodings:
        assert list(qwen.encode_plain(text)[0]) == ids, text
        assert qwen.decode(ids) == unicodedata.normalize("NFC", text)


def test_added_tokens_are_recognised_in_templates_and_never_in_plain_text(
    qwen: Tokenizer, bundled: Tokenizer
):
    assert qwen.added_tokens["<|im_end|>"] == 151645 and len(qwen.added_tokens) == 26
    for tokenizer in (qwen, bundled):
        for text, id in tokenizer.added_tokens.items():
            assert list(tokenizer.encode(text)) == [id]
            (plain,) = tokenizer.encode_plain(text)
            assert id not in plain and tokenizer.decode(plain) == text


def test_decoding_shows_control_tokens_unless_told_otherwise(bundled: Tokenizer):
    ids = bundled.encode("<think>so</think>hi<|im_end|>")
    assert bundled.decode(ids) == "<think>so</think>hi<|im_end|>"
    assert bundled.decode(ids, skip_special=True) == "<think>so</think>hi"
    assert bundled.decode([bundled.vocab_size + 7]) == ""


def test_sizes_hashes_and_ends(qwen: Tokenizer, bundled: Tokenizer, folder: Path):
    assert qwen.vocab_size == 151669 and qwen.eos_ids == (151645,)
    assert bundled.vocab_size == 1 + max(bundled.added_tokens.values())
    assert (
        bundled.hash
        == hashlib.sha256((BUNDLED / "tokenizer.json").read_bytes()).hexdigest()
        != qwen.hash
    )
    (folder / "generation_config.json").write_text('{"eos_token_id": [true, 5002, 5000]}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ word }}")
    other = load_tokenizer(str(folder))
    assert {len(each.template_hash) for each in (bundled, other.with_arguments({"word": 1}))} == {
        64
    }
    assert other.eos_ids == (5002, 5000)
    assert other.hash == bundled.hash and other.template_hash != bundled.template_hash
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"bos_token": "<|im_start|>"})
    )
    assert (
        load_tokenizer(str(folder)).template_hash != other.template_hash
    )  # a template may show it


def test_the_bundled_vocabulary_spells_digits_one_by_one_and_is_small(bundled: Tokenizer):
    assert len(bundled.encode("#W2378156")) >= 7
    assert sum(path.stat().st_size for path in BUNDLED.iterdir()) < 300_000
    assert (
        len(bundled.encode("Could you please confirm that the refund goes to your credit card?"))
        < 20
    )


@given(st.text())
def test_the_bundled_vocabulary_spells_any_text(bundled: Tokenizer, text: str):
    (ids,) = bundled.encode_plain(text)
    assert bundled.decode(ids) == text


def test_a_post_processor_and_truncation_change_nothing(folder: Path, bundled: Tokenizer):
    spec = json.loads((folder / "tokenizer.json").read_text())
    token = {"id": "<|endoftext|>", "ids": [5000], "tokens": ["<|endoftext|>"]}
    single = [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": token},
    }
    spec["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    text = "one two three four five six"
    assert load_tokenizer(str(folder)).encode(text) == bundled.encode(text)
    assert load_tokenizer(str(folder)).encode_plain(text) == bundled.encode_plain(text)


def test_named_tokens_reach_the_template(folder: Path):
    config = {"bos_token": {"content": "<|im_start|>", "lstrip": False}, "eos_token": "<|im_end|>"}
    config["chat_template"] = [
        {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.render([{"role": "user", "content": "hi"}]) == "<|im_start|>hi<|im_end|>"


def test_a_template_that_refuses_is_the_jobs_failure(bundled: Tokenizer, folder: Path):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no tools here') }}")
    with pytest.raises(JobFailure, match=r"cannot render \[user\]: TemplateError: no tools here"):
        load_tokenizer(str(folder)).render([{"role": "user", "content": "hi"}])
    with pytest.raises(JobFailure, match=r"cannot render \[user\]: TypeError"):
        bundled.render([{"role": "user", "content": 3}])


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer_config.json", None, "has no tokenizer_config.json"),
        (
            "chat_template.jinja",
            None,
            "no chat template, neither chat_template.jinja nor chat_template in",
        ),
        ("tokenizer.json", "{}", "tokenizer.json is not a tokenizer"),
        ("tokenizer.json", "nonsense", "tokenizer.json is not a tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not valid JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object, not a list"),
        ("tokenizer_config.json", "[" * 100_000, "tokenizer_config.json is not valid JSON"),
        ("tokenizer_config.json", '{"eos_token": {"id": 2}}', "eos_token in tokenizer_config.json"),
        ("tokenizer_config.json", '{"bos_token": 1}', "bos_token in tokenizer_config.json"),
        ("generation_config.json", "{", "generation_config.json is not valid JSON"),
        ("chat_template.jinja", "{% if %}", "not valid Jinja: line 1"),
        ("chat_template.jinja", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_wrong_directory_is_named_with_what_is_wrong(
    folder: Path, file: str, content: str | bytes | None, says: str
):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=re.escape(says)) as raised:
        load_tokenizer(str(folder))
    assert str(folder) in str(raised.value)


def test_a_template_of_its_own_for_tools(folder: Path):
    """In a folder beside the default one, or as a list in tokenizer_config.json, as older files
    have it.
    """
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
    for_tools = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text("no tools here")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(for_tools)
    first = load_tokenizer(str(folder))
    shutil.rmtree(folder / "additional_chat_templates")
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = [
        {"name": "default", "template": "no tools here"},
        {"name": "tool_use", "template": for_tools},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    second = load_tokenizer(str(folder))
    for tokenizer in (first, second):
        assert {found.match for found in check(tokenizer, [tool]).edges.values()} == {Match.EXACT}
        assert tokenizer.render([{"role": "user", "content": "x"}]) == "no tools here"


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_a_template_list_of_nonsense(folder: Path, file: str):
    (folder / "chat_template.jinja").unlink()
    (folder / file).write_text('{"chat_template": ["x"]}')
    with pytest.raises(SettingsError, match=f"{file}: .*a list, but not of templates"):
        load_tokenizer(str(folder))


def test_a_configuration_that_names_no_ends_in_the_expected_form(folder: Path):
    config = {"eos_token": "<|im_end|>", "generation": [1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.eos_ids == (tokenizer.added_tokens["<|im_end|>"],)


@pytest.mark.parametrize(
    "where",
    ["./nowhere", "nowhere", "/no/such/directory", "a/b/c", "~no-such-user/a", "a" * 300],
)
def test_what_is_neither_directory_nor_hub_name_is_refused(where: str):
    with pytest.raises(SettingsError, match=f"tokenizer {where}: no such directory"):
        load_tokenizer(where)


def test_a_hub_name_is_fetched_and_a_failure_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **_: asked.append(name) or str(folder)
    )
    assert load_tokenizer("owner/model").name == "owner/model" and asked == ["owner/model"]

    def offline(name: str, **_: object) -> str:
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        SettingsError, match=r"the hub did not deliver it \(OSError: offline\): give a directory"
    ):
        load_tokenizer("owner/model")


def test_the_bundled_vocabulary_can_be_made_again():
    made, kept = json.loads(train().to_str()), json.loads((BUNDLED / "tokenizer.json").read_text())
    assert (
        made["model"]["vocab"] == kept["model"]["vocab"]
        and made["added_tokens"] == kept["added_tokens"]
    )


@pytest.mark.packages
def test_ids_are_those_of_transformers(bundled: Tokenizer):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(BUNDLED)
    text = (
        BUNDLED / "chat_template.jinja"
    ).read_text() + "<think>\nü\n</think>\n\n<|im_end|>\n<|im_start|>assistant\n"
    assert list(bundled.encode(text)) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_space_is_put_where_the_whole_text_would_have_one(scheme: str):
    spec = json.loads(spaced())
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": scheme,
        "split": False,
    }
    tokenizer = Tokenizer(scheme, json.dumps(spec).encode(), {}, "x")
    guard = Guard(ControlTokens(tokenizer))
    text = "<|im_start|>user\n a  b<|im_end|><|im_start|> c<|im_end|>"
    assert guard.encode(text) == tokenizer.encode(text)


def spaced() -> bytes:
    """A vocabulary in the manner of SentencePiece, whose rows of spaces and line ends are added
    tokens. That of tabs stands behind the model's own vocabulary, as in GPT-NeoX's.
    """
    texts = ["<eos>", "<|im_start|>", "<|im_end|>", "\n\n", "\u2581\u2581", "<b>"]
    vocab = {
        text: id for id, text in enumerate([*texts, "\u2581", "\n", *map(chr, range(33, 127))])
    }
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": id, "content": text, "special": id < 3} | flags
                for id, text in (*enumerate(texts), (len(vocab), "\t\t"))
            ],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                ],
            },
            "model": {
                "type": "BPE",
                "vocab": vocab,
                "merges": ["\u2581 \u2581", "\n \n"],
                "byte_fallback": True,
                "unk_token": "<eos>",
            },
        }
    ).encode()


@given(text=st.text(alphabet=" \n\ta<b>\u2581", max_size=40))
def test_added_tokens_of_white_space_are_text(text: str):
    tokenizer = Tokenizer("spaced", spaced(), {}, "x")
    assert set(tokenizer.added_tokens) == {"<eos>", "<|im_start|>", "<|im_end|>", "<b>"}
    if "<b>" not in text:
        assert tokenizer.encode_plain(text)[0] == tokenizer.encode(text)
    assert tokenizer.added_tokens["<b>"] not in tokenizer.encode_plain(text)[0]


def test_a_vocabulary_with_them_is_exact():
    template = (BUNDLED / "chat_template.jinja").read_text()
    tokenizer = Tokenizer("spaced", spaced(), {"eos_token": "<|im_end|>"}, template)
    table = check(tokenizer, [])
    assert {finding.match for finding in table.edges.values()} == {Match.EXACT}
    ids = ChatRenderer(tokenizer).open([{"role": "user", "content": "a\n\n  b"}], [])
    assert tokenizer.encode("\n\n")[0] in ids


def test_a_text_that_was_sampled_in_other_ids_is_encoded_as_the_tokenizer_does(bundled: Tokenizer):
    ids = array("I", [id for char in "hello" for id in bundled.encode(char)])
    assert bundled.reencode([ids]) == [bundled.encode("hello")] != [ids]
