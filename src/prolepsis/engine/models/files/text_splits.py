"""How texts are split before byte pairs are merged, by the names that GGUF files have for it (`tokenizer.ggml.pre`).

Sources: the rules in tokenizer.json of the models that the names stand for, and llama.cpp's list of the names
(`src/llama-vocab.cpp`). Left out are names of models that write no text, and of rules that are no regular expressions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TextSplit:
    """The rules of a name: each cuts what the ones before it left into its matches and what lies between them."""

    rules: tuple[str, ...]  # regular expressions, as Oniguruma reads them
    takes_words: bool = False  # whether a part that is a token is taken whole, without regard to merges
    has_bos: bool = False  # whether a text begins with BOS if the file does not say
    is_composed: bool = False  # whether a text is brought to Unicode's form NFC first
    is_spelled_in_bytes: bool = True
    """Whether tokens are spelled in GPT-2's alphabet of bytes; else in characters, with U+2581 for a space."""


def _any(*rules: str) -> str:
    return "|".join(rules)


_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_MARKS_OR_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_ONE_LINE = rf"\s*[\r\n]|{_SPACES}"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters of either case, of the version of Unicode that DeepSeek's first tokenizers knew."""
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HANGUL_OR_MARKS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|"
)
_DEEPSEEK3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
)


def _words(digits: str) -> str:
    """Return the rule of Llama 3, with parts of this many digits."""
    return _any(_SHORT, _LETTERS, rf"\p{{N}}{digits}", _MARKS, _LINES)


def _cased(ending: str, digits: str, excepted: str = "", marks: str = _MARKS_OR_SLASH) -> str:
    """Return a rule for words that begin a part at each capital after small letters.

    `ending`: what may follow a word; `excepted`: a class of letters that are none of words.
    """
    upper, lower = (
        rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{excepted}]",
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{excepted}]",
    )
    first = f"{_BEFORE_WORD}{upper}*{lower}+{ending}"
    second = f"{_BEFORE_WORD}{upper}+{lower}*{ending}"
    return _any(first, second, rf"\p{{N}}{digits}", marks, _LINES)


GPT2 = TextSplit((_GPT2,))
DIGITS = TextSplit((r"\p{N}", _GPT2))
LLAMA3 = TextSplit((_words("{1,3}"),), takes_words=True, has_bos=True)
QWEN2 = TextSplit((_words(""),), is_composed=True)
DEEPSEEK3 = TextSplit((r"\p{N}{1,3}", _HAN_AND_KANA, _any(_DEEPSEEK3_WORDS + r"[\r\n]*", _LINES)))
GPT4O = TextSplit((_cased(f"{_SHORT}?", "{1,3}"),))
BAILING = TextSplit(
    (_any(r"'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"\p{N}", r" ?[^\s\p{L}\p{N}]++[\r\n]*", _ONE_LINE),)
)
BLOOM = TextSplit((" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",))
SPACED = TextSplit((r"[^\n]+|\n+",), is_spelled_in_bytes=False)
"""SentencePiece's spelling with merges of its own; no token holds a line break and something else."""

_NAMES: Mapping[TextSplit, str] = {
    GPT2: "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4",
    DIGITS: "smollm starcoder refact codeshell exaone minerva-7b mellum2",
    replace(DIGITS, is_composed=True): "command-r",
    LLAMA3: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    TextSplit(LLAMA3.rules): "dbrx smaug-bpe chatglm-bpe",
    TextSplit(LLAMA3.rules, takes_words=True): "glm4 glm5",
    QWEN2: "qwen2 deepseek-r1-qwen megrez kormo f2llmv2",
    TextSplit(QWEN2.rules): "stablelm2 hunyuan grok-2 solar-open",
    TextSplit((_any(_LETTERS, r"\p{N}", _MARKS, _LINES),)): "ufakzeka",
    DEEPSEEK3: "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
    GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    BAILING: "bailingmoe bailingmoe2 llada-moe",
    BLOOM: "bloom gpt3-finnish poro-chat",
    replace(BLOOM, rules=(*BLOOM.rules, r"\p{N}")): "viking",
    SPACED: "gemma4 sarvam-moe",
}
_SINGLE: dict[str, TextSplit] = {
    "qwen35": TextSplit(
        (_any(_SHORT, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _LINES),),
    ),
    "falcon": TextSplit((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "tekken": TextSplit((_cased("", ""),), takes_words=True, has_bos=True),
    "kimi-k2": TextSplit((_any(r"\p{Han}+", _cased(f"{_SHORT}?", "{1,3}", excepted=r"&&[^\p{Han}]", marks=_MARKS)),)),
    "tiny_aya": TextSplit((r"\d{1,3}(?=(?:\d{3})*\b)", *GPT4O.rules)),
    "cohere2moe": TextSplit((r"\d{1,3}(?=(?:\d{3})*\b)", *GPT4O.rules)),
    "superbpe": TextSplit((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "minicpm5": TextSplit((r"\p{N}{1,3}", _words("+")), takes_words=True),
    "laguna": TextSplit((r"[^\n]+|\n+", _words(""))),
    "seed-coder": TextSplit((_any(_SHORT, _LETTERS, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES),)),
    "exaone-moe": TextSplit(
        (
            _any(
                *(_SHORT, rf"{_BEFORE_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+", r"\p{N}"),
                *(r" ?[^\s\p{L}\p{N}]+[\r\n/]?", _ONE_LINE),
            ),
        )
    ),
    "jais-2": TextSplit(
        (
            _any(
                *(_SHORT, _LETTERS, r"\p{N}{1,3}", _MARKS, r"\s*[\r\n]+"),
                *(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)),
                r"\s{1,2}(?!\S)|\s{1}",
            ),
        )
    ),
    "youtu": TextSplit((_HANGUL_OR_MARKS + _HAN_AND_KANA, _cased(f"{_SHORT}?", "")), takes_words=True),
    "spark2_5": TextSplit((r"\p{N}{1,3}", _HAN_AND_KANA, _any(_DEEPSEEK3_WORDS, r"[\r\n]", _SPACES), r"\p{N}")),
    "deepseek-coder": TextSplit((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-llm": TextSplit(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _CJK,
            r"\p{N}",
        )
    ),
}
SPLITS: Mapping[str, TextSplit] = {name: split for split, names in _NAMES.items() for name in names.split()} | _SINGLE
