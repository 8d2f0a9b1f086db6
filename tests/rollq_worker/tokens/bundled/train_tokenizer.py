"""How the bundled tokenizer was made: `python -m tests.rollq_worker.tokens.bundled.train_tokenizer`
writes its tokenizer.json again, always the same bytes.

A byte-level BPE over made-up customer service talk and JSON, from the words of train_words.txt. It
spells any text; only how short depends on the words. Digits stand alone, as in Qwen's vocabulary.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rollq_worker.tokens.tokenizer import BUNDLED

HERE = Path(__file__).parent
VOCABULARY = 5000
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
# A word with one space or mark before it | one digit | marks and the line breaks after them | line
# breaks | spaces.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PHRASES = (
    "I'm sorry to hear that. Could you please provide your user id, or your email address?",
    "I'd like to return the {} that I ordered, because the {} doesn't work.",
    "Thank you! I've found your order; its status is '{}'. Do you want me to go ahead (yes/no)?",
    "You're welcome. Is there anything else I can help you with today?",
    "Error: {} not found. The {} must be one of the following:\n\n- {}\n- {}\n",
    "# Policy\n\nAs a {} agent, you can help users {} or {} their {}.\n\n## Rules\n\n- "
    "You should not {} the {}.\n",
    "1. First, {} the {}.\n2. Then, {} it.\n\n**Note:** the {} can't be {}, and it won't be {}.\n",
    "What's the total? It's ${}.00, and the refund will go to your {} within {} days.",
)
ENDS = (".", "?", "!", ",", ":", ";", " -", ".\n", ".\n\n", ")", "...")
TYPES = ("string", "integer", "number", "boolean", "array")


def texts(lines: list[list[str]]) -> Iterator[str]:
    """The training text. Word lists come as lines: frequent words, the trade's words, proper names,
    keys of JSON.
    """
    rng = random.Random(0)
    common, trade, names, keys = lines
    for word in (*common, *trade):
        yield f"{word} {word} {word.capitalize()} {word}s {word}"
    for _ in range(6000):
        words = rng.choices(common, k=6) + rng.choices(trade, k=7) + rng.choices(names, k=1)
        rng.shuffle(words)
        yield " ".join(words).capitalize() + rng.choice(ENDS)
    for _ in range(1500):
        phrase = rng.choice(PHRASES)
        yield phrase.format(*rng.choices(trade + names, k=phrase.count("{}")))
    for _ in range(2500):
        yield json.dumps(record(rng, trade, names, keys), indent=rng.choice([None, None, 2]))
        yield json.dumps(schema(rng, trade, keys))
        yield (
            '{"name": "'
            + rng.choice(keys)
            + '", "arguments": '
            + json.dumps({rng.choice(keys): "#W"})
            + "}\n"
        )


def record(
    rng: random.Random, trade: list[str], names: list[str], keys: list[str]
) -> dict[str, object]:
    values: list[object] = [
        True,
        False,
        None,
        [],
        {},
        19.5,
        [{rng.choice(keys): rng.choice(trade)}] * 2,
    ]
    user_id = f"{rng.choice(names)}_{rng.choice(names)}_1".lower()
    values += [rng.choice(trade), user_id, rng.choice(names), "a@b.com", "#W1"]
    return {rng.choice(keys): rng.choice(values) for _ in range(5)}


def schema(rng: random.Random, trade: list[str], keys: list[str]) -> dict[str, object]:
    about = " ".join(rng.choices(trade, k=5)).capitalize() + "."
    fields = {rng.choice(keys): {"type": rng.choice(TYPES), "description": about} for _ in range(2)}
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {
        "type": "function",
        "function": {"name": rng.choice(keys), "description": about, "parameters": parameters},
    }


def train() -> Tokenizer:
    lines = [line.split() for line in (HERE / "train_words.txt").read_text().splitlines()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts(lines),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return tokenizer


if __name__ == "__main__":
    path = BUNDLED / "tokenizer.json"
    train().save(str(path), pretty=False)
    print(f"{path}: {path.stat().st_size} bytes")
