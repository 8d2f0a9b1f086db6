"""What a real server refuses of a grammar (`regex`, `json_schema`, `ebnf`, `structural_tag`), which XGrammar reads.

The invariant: what is refused here is refused there. The reverse does not hold: XGrammar compiles a grammar, this only
reads its form. Its regular expressions are JavaScript's rather than Python's, which is why `re` is not asked.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
UNENFORCED = frozenset(
    "contains dependentRequired dependentSchemas else if maxContains minContains multipleOf not then"
    " uniqueItems".split()
)
"""Keywords of JSON Schema that XGrammar would ignore, so that SGLang refuses them."""
DECISIVE = frozenset(("$ref", "const", "enum", "anyOf", "oneOf", "allOf"))
"""Where one of them is, `type` and `properties` are not looked at."""
DEPTH = 100
"""Nested schemas deeper down are not looked at."""

_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F](?!\Z)|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[xu]\{[0-9a-fA-F]+\}|c[A-Za-z]|[^xuc])", re.DOTALL
)
_COUNT = re.compile(r"\{(\d{1,4000})(,(\d{0,4000}))?\}")  # int() reads no more
_CLASS = re.compile(r"\[((?:\\.|[^\]\\])*)\]", re.DOTALL)
_RANGE = re.compile(r"([a-zA-Z0-9])-([a-zA-Z0-9])")
_GROUP = re.compile(r"\((\?:|\?<(?![=!])[^>]*>|(?!\?))")

_LEXEMES = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*")|(?P<chars>\[(?:\\.|[^\]\\\n])*\])|(?P<comment>\#[^\n]*)|(?P<is>::=)"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)|(?P<number>-?\d+)|(?P<blank>\s+)|(?P<mark>[()|*+?{},=])""",
    re.DOTALL,
)


def refusal(kind: str, grammar: str) -> str:
    """Why a server would not compile it; "" when nothing speaks against it."""
    found = CHECKS[kind](grammar)
    return f"Failed to compile {kind.removesuffix('_schema')} grammar: {found}" if found else ""


def regex_fault(pattern: str) -> str:
    """Groups, classes, escapes and repetitions."""
    if "\0" in pattern:
        return "Invalid regex: NUL bytes (\\u0000) are not allowed"
    at, depth = 0, 0
    repeatable, repeated = False, False  # what stands in front of `at`: something, which is repeated already
    while at < len(pattern):
        here = pattern[at]
        count = _COUNT.match(pattern, at) if here == "{" else None
        taken, found = 1, ""
        if here in "*+?" or count:
            found = "" if repeatable and not repeated else "Two repetitions, or nothing to repeat."
            if count:
                taken = len(count[0])
                if count[3] and int(count[3]) < int(count[1]):
                    found = "Lower bound is larger than upper bound"
            if pattern[at + taken : at + taken + 1] == "?":
                taken += 1  # not greedy
            repeatable, repeated = True, True
        elif here in "()|":
            depth += {"(": 1, ")": -1, "|": 0}[here]
            group = _GROUP.match(pattern, at) if here == "(" else None
            taken = len(group[0]) if group else 1
            if here == "(" and not group:
                found = "Group modifier flag is not supported yet."
            elif depth < 0:
                found = "Unmatched ')'"
            repeatable, repeated = here == ")", False
        else:
            taken, found = _atom(pattern, at)
            repeatable, repeated = repeatable or here not in "^$", repeated and here in "^$"
        if found:
            return f"Regex parsing error at position {at + 1}: {found}"
        at += taken
    return "Regex parsing error: The parenthesis is not closed." if depth else ""


def _atom(pattern: str, at: int) -> tuple[int, str]:
    """The characters of a class, an escape or a plain character there, and what is wrong with it."""
    here = pattern[at]
    if here == "{":
        return 1, "Invalid repetition count."
    if here == "[":
        chars = _CLASS.match(pattern, at)
        if not chars:
            return 1, "Unclosed '['"
        reversed_ = any(low > high for low, high in _RANGE.findall(re.sub(r"\\.", "", chars[1], flags=re.DOTALL)))
        return len(chars[0]), "" if chars[1] and not reversed_ else "The character class is empty or reversed."
    if here == "\\":
        escape = _ESCAPE.match(pattern, at)
        if not escape:
            return 1, "Escape sequence is not finished."
        if escape[1] in "123456789bBpPk":
            return 1, "Backreferences, word boundaries and Unicode classes are not supported yet."
        return len(escape[0]), ""
    return 1, ""


def schema_fault(text: str) -> str:
    """JSON, and schemas where schemas belong."""
    if text == "$$ANY$$":  # SGLang's word for any JSON
        return ""
    try:
        schema = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        return str(e) or type(e).__name__
    return next(_schema_faults(schema), "")


def _no_number(text: str) -> float:
    raise ValueError(f"Failed to parse JSON: syntax error near: {text}")


def _schema_faults(schema: Any, depth: int = 0) -> Iterator[str]:
    if schema is True or depth > DEPTH:
        return
    if not isinstance(schema, dict):
        yield f"Schema should be an object or bool, but got {json.dumps(schema)}"
        return
    if ignored := sorted(UNENFORCED.intersection(schema)):
        yield f"JSON Schema is not supported by xgrammar: keyword(s) {', '.join(ignored)} would be ignored"
    if DECISIVE.isdisjoint(schema):
        kind = schema.get("type")
        for each in kind if isinstance(kind, list) else [kind]:
            if each is not None and each not in TYPES:
                yield f"Unsupported type {json.dumps(each)}"
        if kind in (None, "object"):
            properties = schema.get("properties", {})
            if not isinstance(properties, dict):
                yield "properties must be an object"
            else:
                for each in properties.values():
                    yield from _schema_faults(each, depth + 1)


def ebnf_fault(grammar: str) -> str:
    """Rules at the beginnings of lines, `root` among them; brackets that close; names that are defined."""
    lexemes: list[tuple[str, str, int]] = []
    at = 0
    while at < len(grammar):
        found = _LEXEMES.match(grammar, at)
        if not found:
            return f"EBNF lexer error: Unexpected character: {grammar[at]}"
        if found.lastgroup not in ("blank", "comment"):
            lexemes.append((str(found.lastgroup), found[0], at))
        at = found.end()
    rules = Counter[str]()
    for (kind, name, begin), (then, _, _) in pairwise(lexemes):
        if then == "is":
            if kind != "name" or grammar[:begin].rpartition("\n")[2].strip():
                return "EBNF lexer error: The rule name should be at the beginning of the line"
            rules[name] += 1
    if "root" not in rules:
        return 'EBNF parser error: The root rule with name "root" is not found'
    if twice := [name for name, count in rules.items() if count > 1]:
        return f'EBNF parser error: Rule "{twice[0]}" is defined multiple times'
    return _body_fault(lexemes, frozenset(rules))


def _body_fault(lexemes: list[tuple[str, str, int]], rules: frozenset[str]) -> str:
    depth, before = 0, ""
    following = [*(text for _, text, _ in lexemes[1:]), ""]
    # XGrammar's macros look like calls; the words in their brackets need not be rules.
    macros = any(first[0] == "name" and first[1] not in rules and then[1] == "(" for first, then in pairwise(lexemes))
    for (kind, text, _), then in zip(lexemes, following, strict=True):
        starts = kind == "name" and then == "::="
        if depth and starts:
            return "EBNF parser error: Expect )"
        # An element is due behind these; a look-ahead is written (= ...), and () is nothing.
        due = before in ("::=", "|", "(") and before + text not in ("(=", "()")
        if due and (starts or kind == "number" or text in "|*+?{},=)"):
            return f"EBNF parser error: Expect element, but got {text}"
        depth += {"(": 1, ")": -1}.get(text, 0)
        if depth < 0:
            return "EBNF parser error: Expect rule name"
        if kind == "name" and text not in rules and not macros:
            return f'EBNF parser error: Rule "{text}" is not defined'
        before = text
    return "EBNF parser error: Expect )" if depth or before in ("::=", "|") else ""


def tag_fault(text: str) -> str:
    """JSON of one of the two forms."""
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as e:
        return str(e) or type(e).__name__
    if not isinstance(tag, dict) or not (isinstance(tag.get("format"), dict) or tag.get("triggers")):
        return "Grammar compilation failed: it has neither a format nor triggers"
    return ""


CHECKS: dict[str, Callable[[str], str]] = {
    "json_schema": schema_fault,
    "regex": regex_fault,
    "ebnf": ebnf_fault,
    "structural_tag": tag_fault,
}
"""By the sampling parameter."""
