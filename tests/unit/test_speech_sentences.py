import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.speech.sentences import MAX_CHARACTERS, split_sentences
from hayakuchi.speech.spoken_form import spoken_form

SOME_TEXT = st.lists(
    st.one_of(
        st.text(max_size=4), st.sampled_from([*"「」『』（）()。！？!?.、…\n ", "漢字", "かな", "Ab1", "が\u3099"])
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("今日は晴れ。明日は雨。", ["今日は晴れ。", "明日は雨。"]),
        ("本当？嘘！えっ！？行く", ["本当？", "嘘！", "えっ！？", "行く"]),
        ("一行目\n二行目\n\n四行目", ["一行目", "二行目", "四行目"]),
        ("「行くよ。待って。」と言った。また", ["「行くよ。待って。」と言った。", "また"]),
        ("彼（身長は2m。）が来た。", ["彼（身長は2m。）が来た。"]),
        ("「行くよ。」「うん。」", ["「行くよ。」", "「うん。」"]),
        ("『「はい。」と彼。』と本に。次", ["『「はい。」と彼。』と本に。", "次"]),
        ("「閉じない。そのまま。", ["「閉じない。", "そのまま。"]),
        ("開かない。」次の文。", ["開かない。」", "次の文。"]),
        ("（「入れ違い。）」の文。次。", ["（「入れ違い。）」の文。", "次。"]),
        (
            "値は3.5です。Yahoo!ニュースを見る。すごい!行こう",
            ["値は3.5です。", "Yahoo!ニュースを見る。", "すごい!", "行こう"],
        ),
        ("It is. Yes it is! No", ["It is.", "Yes it is!", "No"]),
        ("そうか…そうだね……", ["そうか…そうだね……"]),
        ("　字下げ。　次　", ["字下げ。", "次"]),
        ("", []),
        (" \n　\n", []),
        ("。。。", ["。。。"]),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@settings(deadline=None)
@given(SOME_TEXT, st.integers(2, 30))
def test_nothing_is_lost_and_nothing_too_long(text, limit):
    sentences = split_sentences(text, limit)
    assert re.sub(r"\s", "", "".join(sentences)) == re.sub(r"\s", "", text)
    assert all(sentence == sentence.strip() and 0 < len(sentence) <= limit for sentence in sentences)


@settings(deadline=None)
@given(SOME_TEXT)
def test_splitting_again_changes_nothing_but_for_quotes(text):
    # What was inside a bracket may be alone after a cut, so only short texts without brackets are compared.
    text = re.sub(r"[「」『』（）()]", "", text)[:MAX_CHARACTERS]
    once = split_sentences(text)
    assert [part for sentence in once for part in split_sentences(sentence)] == once


def test_four_hundred_characters_without_a_full_stop():
    clause = "春の風が吹いて花が散り、川の水は温み、"  # 19 characters
    text = (clause * 22)[:400]
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert all(piece.endswith("、") for piece in pieces[:-1])
    assert all(MAX_CHARACTERS / 4 <= len(piece) <= MAX_CHARACTERS for piece in pieces)


def test_without_commas_a_piece_ends_after_hiragana():
    text = "私の家の近くの公園には大きな桜の木が立って" * 20
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert all(re.search("[ぁ-ん]$", piece) and not re.match("[ぁ-ん]", piece) for piece in pieces[:-1])


def test_a_long_quote_is_cut_between_its_sentences():
    quote = "「" + "今日はとても良い天気でした。" * 12 + "」と書いた。"
    pieces = split_sentences(quote)
    assert len(pieces) > 1
    assert all(piece.endswith("。") for piece in pieces)


@pytest.mark.parametrize("word", ["3.14159265358979", "Hayakuchi", "チャーシュー", "が\u3099" * 5])
def test_words_and_numbers_are_not_torn_apart(word):
    text = f"漢{word}" * 12
    for piece in split_sentences(text, 30):
        assert re.fullmatch(f"(漢?{re.escape(word)})+漢?|漢", piece), piece


HOSTILE = ["「", "」", "（「", "あ", "。", "(]", "！」", "\u3099", "a.", "1", "…", "「」", "。」", " ", "\n", "か。「"]


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear(unit):
    text = unit * (200_000 // len(unit))
    start = time.perf_counter()
    sentences = split_sentences(text)
    assert time.perf_counter() - start < 20
    assert re.sub(r"\s", "", "".join(sentences)) == re.sub(r"\s", "", text)


@settings(deadline=None)
@given(SOME_TEXT)
def test_spoken_form_raises_for_no_text_and_keeps_its_lines(text):
    once = spoken_form(text)
    assert "\0" not in once
    once.encode()
    assert once.count("\n") == text.count("\n") + text.count("\r") - text.count("\r\n") + sum(
        map(text.count, "\f\v\x85\u2028\u2029")
    )


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("10:30", "10時30分"),
        ("9:05:07", "9時5分7秒"),
        ("０９：００", "9時"),
        ("23:60", "23対60"),
        ("3:2", "3対2"),
        ("2026/11/30", "2026年11月30日"),
        ("2026-1-2", "2026年1月2日"),
        ("2026/13/30", "2026/13/30"),
        ("12345/1/2", "12345/1/2"),
        ("090-1234-5678", "090-1234-5678"),
        ("-5℃", "マイナス5℃"),
        ("気温は−5度", "気温はマイナス5度"),
        ("気温-5度", "気温マイナス5度"),
        ("A-1", "A-1"),
        ("￥1,000", "1,000円"),
        ("$5万", "5万ドル"),
        ("¥1,000円", "1,000円"),
        ("$5ドル", "5ドル"),
        ("￥１，０００", "1,000円"),
        ("￥１，０００円です", "1,000円です"),
        ("＄１０ﾄﾞﾙ", "10ドル"),
        ("¥ 500円", "500円"),
        ("5$", "5ドル"),
        ("5＄の", "5ドルの"),
        ("3.50 €ユーロ", "3.50ユーロ"),
        ("1,000円", "1,000円"),
        ("1,000円¥", "1,000円"),
        ("1万円(¥10,000)", "1万円(10,000円)"),
        ("€3.50", "3.50ユーロ"),
        ("US$10", "10米ドル"),
        ("US$10ドル", "10ドル"),
        ("NT$100", "100台湾ドル"),
        ("USD 10", "10米ドル"),
        ("1,000JPY", "1,000円"),
        ("$5 $6", "5ドル 6ドル"),
        ("5$ 10個", "5ドル 10個"),
        ("B5￥100", "B5、100円"),
        ("合計￥－５００", "合計マイナス500円"),
        ("-$5", "マイナス5ドル"),
        ("¥100〜¥200", "100円から200円"),
        ("5¢", "5セント"),
        ("￦500", "500ウォン"),
        ("$5ショップ", "5ドルショップ"),
        ("10%パーセント", "10パーセント"),
        ("１０％ﾊﾟｰｾﾝﾄ", "10パーセント"),
        ("10㌫パーセント", "10パーセント"),
        ("5kgキロ", "5キロ"),
        ("5㎏キログラム", "5キログラム"),
        ("5kgキロバイト", "5kgキロバイト"),
        ("25℃度", "25度"),
        ("25°度", "25度"),
        ("20m走", "20m走"),
        ("3〜5日", "3から5日"),
        ("3日～5日", "3日から5日"),
        ("東京〜大阪", "東京〜大阪"),
        ("½", "2分の1"),
        ("2½", "2と2分の1"),
        ("㈱㍿㎏㌔㋿", "株式会社株式会社kgキロ令和"),
        ("5m²", "5m2"),
        ("①Ⅳ℃…", "①Ⅳ℃…"),
        ("１，２３４．５", "1,234.5"),
        ("x=3", "xイコール3"),
        ("ジャン＝ポール", "ジャン・ポール"),
        ("45°と45°C", "45度と45℃"),
        ("Vilà, naïve, ø", "Vila, naive, ø"),
        ("example.com", "exampleドットcom"),
        ("か\u3099", "が"),
        ("か\ufe00\u3099", "が"),
        ("葛\U000e0100城", "葛城"),
        ("ﾊﾟｿｺﾝ", "パソコン"),
        ("👨\u200d👩", "👨👩"),
        ("1\ufe0f\u20e3", "1"),
        ("\udb40\udd00です\ud800\0", "です"),
        ("ヷ", "ヴァ"),
        ("a\tb", "a b"),
    ],
)
def test_spoken_form(text, spoken):
    assert spoken_form(text) == spoken


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "½",
        ":",
        "$",
        "$1",
        "1$",
        "1,000",
        "1円",
        "1円 ",
        "US$",
        "1:",
        "-",
        "2026/",
        "、",
        "a.",
        "\u0301",
        "1,",
        "＝ ",
        "9〜",
    ],
)
def test_spoken_form_takes_linear_time(unit):
    start = time.perf_counter()
    spoken_form(unit * (200_000 // len(unit)))
    assert time.perf_counter() - start < 20
