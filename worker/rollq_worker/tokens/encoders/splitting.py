"""A pre-tokenizer of tokenizer.json as one regular expression for tiktoken.

tokenizers keeps what a pattern does not match as words of their own, and tiktoken drops it. So each pattern gets a last
alternative that takes the rest. Two sequences of several steps are known as one pattern. What a later step sees as the
end of its text is there a look ahead to what an earlier step splits off.
"""

from collections.abc import Mapping, Sequence

from rollq.job import Json

_GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_DIGITS_GPT2 = r"""\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?[^\s\p{L}\p{N}]++|\s+(?![^\s\p{N}])|\s"""
"""Single digits, then GPT-2's pattern (Command R, StarCoder)."""
_DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""The three steps of DeepSeek V3 and later."""
_DEEPSEEK_AT_ONCE = (
    r"\p{N}{1,3}|[一-龥぀-ヿ]+"
    r"""|[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}\p{N}぀-ヿ]?[\p{L}\p{M}&&[^一-龥぀-ヿ]]+"
    r"| ?[\p{P}\p{S}&&[^぀-ヿ]]+[\r\n]*|\s*[\r\n]+|\s+(?![^\s\p{N}一-龥぀-ヿ])|\s+"
)


def word_pattern(pre_tokenizer: Mapping[str, Json] | None) -> str | None:
    """The regular expression that finds the words of a byte-level pre-tokenizer; None for one that is not known."""
    pre = pre_tokenizer or {}
    steps: Sequence[Mapping[str, Json]] = pre.get("pretokenizers", [pre])
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    if last.get("use_regex", True):
        return _GPT2 if not splits else _DIGITS_GPT2 if splits == [_SINGLE_DIGITS] else None
    patterns = tuple(map(_isolated, splits))
    found = _DEEPSEEK_AT_ONCE if patterns == _DEEPSEEK else patterns[0] if len(patterns) == 1 else None
    return f"(?:{found})|(?>(?:(?!{found})[\\s\\S])+)" if found else None


_SINGLE_DIGITS = {"type": "Digits", "individual_digits": True}


def _isolated(step: Mapping[str, Json]) -> str | None:
    """The pattern of a step whose matches become words of their own."""
    plain = step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
    regex = step.get("pattern", {}).get("Regex") if plain else None
    return regex.replace("\r", r"\r").replace("\n", r"\n") if regex else None
