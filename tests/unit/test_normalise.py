import re
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.errors import UserError
from hayakuchi.text.normalise import KEPT, POLICIES, normalise

# Unicode's whole range, surrogates too, and pieces that are known to be hard.
ANY_TEXT = st.lists(
    st.one_of(
        st.text(st.characters(), max_size=5),
        st.sampled_from(
            ["ﾊﾟ", "ﾟ", "ﾞ", "か\u3099", "\r\n", "\r", "\0", "\ufeff", "\ud842\udfb7", "\ud842", "①", "…", "¨"]
        ),
        st.sampled_from(["👨‍👩‍👧", "葛󠄀", "㈱", "！", "〜", "～", "\u0301\u0323", "\u0f73", "\u1100\u1161\u11a8", "e"]),
    ),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=400)
@given(ANY_TEXT, st.sampled_from(POLICIES))
def test_idempotent_and_free_of_what_is_no_text(text, policy):
    once = normalise(text, policy)
    assert normalise(once, policy) == once
    assert not re.search("[\ud800-\udfff\ufeff\r\x00-\x08\x0b-\x1f\x7f-\x9f]", once)
    once.encode()


@pytest.mark.parametrize("policy", ["nfkc", "nfc"])
def test_idempotent_on_every_character_before_and_after_a_mark(policy):
    for code in range(0x20000):
        text = f"か{chr(code)}\u3099 {chr(code)}ﾟ"
        once = normalise(text, policy)
        assert normalise(once, policy) == once, hex(code)


@settings(deadline=None)
@given(ANY_TEXT)
def test_nfc_is_unicodes(text):
    clean = normalise(text, "none")
    assert normalise(text, "nfc") == unicodedata.normalize("NFC", clean)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])))
def test_nfkc_is_unicodes_where_nothing_is_kept(text):
    text = re.sub(f"[{''.join(KEPT)}～ﾞﾟ\ufeff\u2028\u2029]", "", text)
    assert normalise(text, "nfkc") == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize(
    ("text", "nfkc", "nfc"),
    [
        ("ﾊﾟｿｺﾝ", "パソコン", "ﾊﾟｿｺﾝ"),
        ("ＡＢＣ１２３", "ABC123", "ＡＢＣ１２３"),
        ("か\u3099は\u309a", "がぱ", "がぱ"),
        ("か\0\u3099", "が", "が"),
        ("｢ｱ､ｲ｡｣", "「ア、イ。」", "｢ｱ､ｲ｡｣"),
        ("ﬁ ⼀", "fi 一", "ﬁ ⼀"),
        ("十～二十〜￡￢", "十〜二十〜£¬", "十～二十〜￡￢"),
    ],
)
def test_spellings_are_folded(text, nfkc, nfc):
    assert normalise(text) == nfkc
    assert normalise(text, "nfc") == nfc


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "text",
    [
        "…‥①⑳㍿㈱℃〜　！？（）：％＝－￥￣㌔㎡½ⅣⅣゟヿ゛㊗️‼️⁉",
        "(ﾟдﾟ) (´・ω・`) （￣ー￣）",
        "𠮟る葛󠄀👨‍👩‍👧🇯🇵👍🏽",
        "行\n\t字下げ　　終\n",
        "10²㎏と2½、tʰ",
        "▁▂▅",
        "",
    ],
)
def test_what_carries_meaning_is_kept(text, policy):
    assert normalise(text, policy) == text


def test_every_kept_character_is_one_that_nfkc_would_change():
    kept = re.compile(f"[{''.join(KEPT)}]")
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        character = chr(code)
        if kept.match(character):
            assert unicodedata.is_normalized("NFC", character), hex(code)
            assert not unicodedata.combining(character), hex(code)
            assert normalise(character) == character
    for characters in KEPT:
        assert any(not unicodedata.is_normalized("NFKC", character) for character in characters), characters


@pytest.mark.parametrize("policy", POLICIES)
def test_cleaning(policy):
    assert normalise("a\r\nb\rc\u2028d\u2029e\x85f\fg\vh", policy) == "a\nb\nc\nd\ne\nf\ng\nh"
    assert normalise("\ufeff\0a\x08\x0e\x7f\x9f\ud800b\udfff", policy) == "ab"
    assert normalise("\ud842\udfb7る", policy) == "𠮷る"


@pytest.mark.parametrize(
    "unit", ["\u3099", "\u0301\u0323", "\u0f73", "ﾞ\u0334", "\ud800", "\r", "！\u0301", "\0か", "ｶﾞ", "\u1161", "漢"]
)
def test_linear_time(unit):
    text = "か" + unit * (200_000 // len(unit))
    for policy in POLICIES:
        start = time.process_time()
        once = normalise(text, policy)
        assert time.process_time() - start < 2  # a quadratic sort takes 40 s
        assert normalise(once, policy) == once


def test_a_long_run_of_marks_is_the_normal_form():
    text = "か\u3099" + "\u0301\u0323\u0f73" * 50 + "字"
    assert normalise(text, "nfkc") == unicodedata.normalize("NFKC", text)
    assert normalise(text, "nfc") == unicodedata.normalize("NFC", text)


def test_an_unknown_policy_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match="'NFKD' is not one of nfkc, nfc, none"):
        normalise("x", "NFKD")
