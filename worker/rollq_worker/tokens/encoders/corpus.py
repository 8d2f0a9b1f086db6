"""Texts on which two encoders of one vocabulary might differ."""

from collections.abc import Iterable, Iterator

_TEXTS = (
    "Hello, world! It's 12:45, isn't it? We'll see; they've said I'd better.",
    '{"order_id": "#W2378156", "items": [{"price": 1034.99, "options": {"a-b_c": null}}]}\n\n\t- one\r\n  two   ',
    "def f(x):\n    return x**2  # done.\n\n\n\nCamelCase snake_case 3.14e-10 \\u00e9 <b>&amp;</b>",
    "Élève naïf, Straße, İstanbul, ﬁn, Ångström, e\u0301; Привет, мир! Ωμέγα",
    "marks of several ages in a row: \u2dfc\u0eba \u0352\u07fd \u1dee\u08d3 \u08ca\ufe28 a\u0316\u0301 \u11938\u0304",
    "你好，世界！こんにちは世界。안녕하세요 세계 مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดี ١٢٣ ४५६",
    "👩‍👩‍👧‍👦🏳️‍🌈🙂\u200b\ufeff\u00a0\u2028\u3000 \x00\x01\x7f ～ ½ Ⅷ ²",
    "a \x00\x00b\x01 \u0378\u0378 \ue000 1\x00 2  3   x  世  界\t\t・ ・\n  \n\r\n <b> </b>  ▁ ▁▁x",
    "a" * 700 + " " * 300 + "\n" * 50 + "1" * 99 + "\t" * 40,
)


def corpus(tokens: Iterable[bytes]) -> Iterator[str]:
    """Many scripts and awkward rows, and a vocabulary's own tokens side by side."""
    yield from _TEXTS
    texts = [token.decode(errors="ignore") for token in tokens]
    for step in (37, 41):
        some = texts[::step]
        yield from ("".join(some[n : n + 50]) for n in range(0, len(some), 50))
