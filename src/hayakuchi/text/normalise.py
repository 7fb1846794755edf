"""Normalisation of text under a named policy.

Every policy first cleans: line ends, form feeds and vertical tabs become line feeds; other control characters but the
tab, byte order marks and lone surrogates go. Joiners and variation selectors stay, since emoji families and the
variants of kanji (葛󠄀) consist of them. Then

- "nfkc" folds what is one character in two spellings (half-width katakana, full-width letters and digits, か + U+3099)
  but keeps `KEPT`, which NFKC would turn into something else, and a half-width ﾟ or ﾞ without katakana before it, as
  in the face (ﾟдﾟ), which NFKC would put on top of its neighbour. The full-width tilde ～ (U+FF5E), which Windows
  writes for the wave dash, becomes the wave dash 〜 (U+301C), and not the ~ of NFKC. － (U+FF0D) stays, since it is
  written for the hyphen as often as for the minus sign;
- "nfc" only composes (か + U+3099), though for some kanji (U+FA19 神) that means their common form;
- "none" leaves the rest as it is.

All policies are idempotent, raise for no text, and take time linear in the text.
"""

import functools
import re
import unicodedata
from typing import Literal

from hayakuchi.errors import UserError

POLICIES = ("nfkc", "nfc", "none")
DEFAULT_POLICY = "nfkc"

# Characters that the policy "nfkc" keeps, as the inside of a regular expression's [], and why. Each is NFC already.
KEPT = {
    "\u3000": "ideographic space: it indents paragraphs, and NFKC would make it an ASCII space",
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff5d\uff5f\uff60\uffe3\uffe5": "full-width ！（￥ are the norm",
    "\u2025\u2026": "leaders ‥ … are one sign, not full stops",
    "\u203c\u2047-\u2049": "‼ ⁇ ⁈ ⁉ are one sign, and emoji with a variation selector",
    "\u2033\u2034\u2036\u2037\u2057\u222c\u222d\u222f\u2230": "″ and ∬ are one sign, not two",
    "\u2460-\u24ff": "enclosed ① ⑴ ⒈ Ⓐ are not 1 or A",
    "\u3192-\u319f": "kanbun marks ㆒ ㆖ are notes beside the text, not kanji",
    "\u3200-\u33ff": "enclosed and squared ㈱ ㊗ ㋿ ㍿ ㌔ ㎏ are one sign",
    "\U0001f100-\U0001f265": "🄰 🈁 🈚 are signs, some of them emoji",
    "\u2100-\u2125\u2127-\u2129\u212c-\u214f": "letter-like ℃ № ℡ ™ ℓ (Å, Ω and K have canonical forms)",
    "\u00aa\u00b2\u00b3\u00b9\u00ba\u2070-\u209f": "superscripts and subscripts: m² is not m2",
    "\u02b0-\u02b8\u02e0-\u02e4\u1d2c-\u1d6a\u1d78\u1d9b-\u1dbf": "modifier letters of phonetic notation: tʰ is not th",
    "\u00bc-\u00be\u2150-\u215f\u2189": "fractions: 2½ is not 21/2",
    "\u2160-\u217f": "Roman numerals Ⅱ: not a run of letters",
    "\u309b\u309c\u00a8\u00af\u00b4\u00b8\u02d8-\u02dd\u2017\u203e": "゛ ´ ‾ would become a space and a mark",
    "\u309f\u30ff": "ゟ and ヿ of old print",
}

_FULL_WIDTH_TILDE, _WAVE_DASH = "\uff5e", "\u301c"
_KEPT_RUN = re.compile(f"([{''.join(KEPT)}]+|(?<![\uff66-\uff9d])[\uff9e\uff9f]+)")
_LINE_END = re.compile("\r\n?|[\v\f\x85\u2028\u2029]")
_REMOVED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff]")
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u2028\u2029\ud800-\udfff]")


def normalise(text: str, policy: str = DEFAULT_POLICY) -> str:
    """The text under the named policy (see the module's docstring).

    Raises:
      UserError: there is no such policy. No text raises.
    """
    if policy not in POLICIES:
        raise UserError(f"normalisation policy {policy!r} is not one of {', '.join(POLICIES)}")
    if _UNCLEAN.search(text):
        text = _clean(text)
    if policy == "nfkc":
        # Even parts are what stands between kept characters. NFKC never gives one of those, hence idempotence.
        parts = _KEPT_RUN.split(text.replace(_FULL_WIDTH_TILDE, _WAVE_DASH))
        parts[::2] = [_normal_form("NFKC", part) for part in parts[::2]]
        return "".join(parts)
    if policy == "nfc":
        return _normal_form("NFC", text)
    return text


def _clean(text: str) -> str:
    # Through UTF-16 two surrogates that form a pair become their character, and a lone one is dropped.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return _REMOVED.sub("", _LINE_END.sub("\n", text))


def _normal_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    if unicodedata.is_normalized(form, text):
        return text
    # unicodedata sorts the marks after a character by insertion, in quadratic time: long runs come to it sorted.
    decomposed: Literal["NFD", "NFKD"] = "NFD" if form == "NFC" else "NFKD"
    return unicodedata.normalize(form, _long_runs_of_marks().sub(lambda run: _sorted_marks(decomposed, run[0]), text))


def _sorted_marks(decomposed: Literal["NFD", "NFKD"], run: str) -> str:
    marks = (mark for character in run for mark in unicodedata.normalize(decomposed, character))
    return "".join(sorted(marks, key=unicodedata.combining))


@functools.cache
def _long_runs_of_marks() -> re.Pattern[str]:
    # Those of a combining class, which all stand below U+1F000, and those that decompose into nothing else.
    marks = "".join(chr(code) for code in range(0x300, 0x1F000) if unicodedata.combining(chr(code)))
    return re.compile(f"[{marks}\u0f73\u0f75\u0f81]{{32,}}")
