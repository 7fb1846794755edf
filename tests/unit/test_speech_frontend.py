"""The front end with each library that is installed, and with a made-up engine for what no library is needed for."""

import importlib
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.speech.engines import ENGINES, Analysis, Word, make_engine
from hayakuchi.speech.frontend import FrontEnd, Unread, make_front_end
from hayakuchi.speech.sentences import MAX_CHARACTERS
from hayakuchi.speech.spoken_form import spoken_form
from hayakuchi.speech.symbols import DEVOICED_VOWELS, INVENTORY

MODULES = {"haqumei": "haqumei", "pyopenjtalk-plus": "pyopenjtalk"}


def require(engine):
    # Not importorskip: pyopenjtalk prints when it is imported, and the front end keeps that from the output.
    if importlib.util.find_spec(MODULES[engine]) is None:
        pytest.skip(f"{engine} is not installed")


@pytest.fixture(scope="module", params=ENGINES)
def front_end(request):
    require(request.param)
    return make_front_end(request.param)


def said(front_end, text):
    return [" ".join(sentence.symbols) for sentence in front_end.read(text).sentences]


def reported(front_end, text):
    return [(unread.text, unread.reason) for unread in front_end.read(text).unread]


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("よろしくお願いします。", "^ y o [ r o sh I k u o n e g a i sh i m a ] s U $"),  # S6: an accent of two digits
        ("はい", "^ h a ] i $"),  # S9
        ("寒いｔ", "^ s a [ m u ] i # t i ] i $"),  # S15
        ("本当？", "^ h o [ N t o o ?"),
        ("こんにちは、世界！", "^ k o [ N n i ch i w a _ s e ] k a i $"),
        ("か\u3099っこう", "^ g a [ cl k o o $"),
        ("ﾊﾟｿｺﾝ", "^ p a [ s o k o N $"),
        ("葛\U000e0100城", "^ k a [ ts u r a g i $"),
        ("10:30", "^ j u ] u j i # s a [ N j u ] cl p u N $"),
        ("クァルテット", "^ k w a ] r u t e cl t o $"),
        ("①", "^ i [ ch i $"),
        ("――は", "^ w a $"),  # S18
        ("・・・ね", "^ n e $"),
    ],
)
def test_symbols(front_end, text, symbols):
    assert said(front_end, text) == [symbols]
    assert reported(front_end, text) == []


@pytest.mark.parametrize("text", ["…", "。。。", "、", "「」", "・・・", " 。 "])
def test_signs_alone_say_nothing(front_end, text):
    assert front_end.read(text).sentences == []
    assert reported(front_end, text) == [(text.strip(), "nothing to say")]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u200b", "\0", "\ud800"])
def test_an_empty_text_has_an_entry_too(front_end, text):
    assert front_end.read(text).sentences == []
    assert reported(front_end, text) == [(spoken_form(text), "nothing to say")]


@pytest.mark.parametrize("text", ["😀", "々〻", "♪", "한국어", "→", "☆"])
def test_what_has_no_reading_is_reported(front_end, text):
    assert front_end.read(text).sentences == []
    assert (
        reported(front_end, text) == [(text, "no reading")]
        or "".join(unread.text for unread in front_end.read(text).unread) == text
    )


def test_the_rest_of_a_text_is_said(front_end):
    reading = front_end.read("はい😀。\n…\nいいえ♪")
    assert [sentence.text for sentence in reading.sentences] == ["はい😀。", "いいえ♪"]
    assert [(unread.text, unread.reason, unread.sentence) for unread in reading.unread] == [
        ("😀", "no reading", "はい😀。"),
        ("…", "nothing to say", "…"),
        ("♪", "no reading", "いいえ♪"),
    ]


def test_a_word_in_no_dictionary_is_said_and_reported(front_end):
    # S7: synthesis goes on, and the guess can be heard of.
    reading = front_end.read("自分の勘の良さに嗤ってしまう。")
    assert len(reading.sentences) == 1
    assert reading.sentences[0].symbols[:5] == ["^", "j", "i", "[", "b"]
    assert reading.unread == [Unread("嗤", "guessed", "自分の勘の良さに嗤ってしまう。")]


@pytest.mark.parametrize(
    "text", ["これは、「りんご」です。（笑）", "ニャンニャカ号", "5km/hで3.5℃、50%", "2026年11月30日"]
)
def test_what_is_read_is_not_reported(front_end, text):
    assert [unread for unread in front_end.read(text).unread if unread.reason != "guessed"] == []


def test_devoiced_vowels_are_kept_or_folded(front_end):
    folded = make_front_end(front_end.version.split()[0], devoiced="fold")
    text = "よろしくお願いします。"
    (kept,), (plain,) = said(front_end, text), said(folded, text)
    assert set(DEVOICED_VOWELS) & set(kept.split())
    assert plain == kept.replace("I", "i").replace("U", "u")


def test_four_hundred_characters_without_a_full_stop(front_end):
    # S14
    text = ("春の風が吹いて花が散り、川の水は温み、" * 22)[:400]
    reading = front_end.read(text)
    assert "".join(sentence.text for sentence in reading.sentences) == text
    assert all(len(sentence.text) <= MAX_CHARACTERS for sentence in reading.sentences)
    assert reading.unread == []


@pytest.mark.parametrize("unit", ["漢字とかな。", "😀", "「", "1", "か\u3099"])
def test_long_texts(front_end, unit):
    reading = front_end.read(unit * (20_000 // len(unit)))
    assert reading.sentences or reading.unread


def test_two_hundred_thousand_characters():
    require("haqumei")
    reading = make_front_end("haqumei").read("あ" * 200_000)
    assert sum(len(sentence.text) for sentence in reading.sentences) == 200_000
    assert sum(sentence.symbols.count("a") for sentence in reading.sentences) == 200_000


def test_a_batch_reads_as_each_alone(front_end):
    texts = ["はい。いいえ。", "", "😀", "今日は晴れ\n明日は雨", "嗤う"]
    assert front_end.read_all(texts) == [front_end.read(text) for text in texts]
    assert front_end.read_all([]) == []


def test_an_utterance_joins_sentences_with_pauses(front_end):
    assert " ".join(front_end.read("はい。本当？はい。").utterance) == "^ h a ] i _ h o [ N t o o ? _ h a ] i $"
    assert front_end.read("。").utterance == []


HARD = (
    "、。？!「」（\n 　々〻ゝ〳〵ーっンァャ一二万〇09:-/％℃$…①Ⅳ㈱ﾊﾟ゛\u3099😀\u200d\ufe0f→♪aé한й你\0\ufeff\ud800龘𰻞東京"
)
ANY_TEXT = st.lists(st.one_of(st.sampled_from(HARD), st.characters(), st.sampled_from("あのかきして山")), max_size=40)


@settings(deadline=None, max_examples=80)
@given(text=ANY_TEXT.map("".join))
def test_no_text_crashes_and_all_symbols_have_ids(front_end, text):
    reading = front_end.read(text)
    assert reading.sentences or reading.unread
    for sentence in reading.sentences:
        assert INVENTORY.decode(INVENTORY.encode(sentence.symbols)) == sentence.symbols
        assert sentence.symbols[0] == "^"
        assert sentence.symbols[-1] in ("$", "?")
        assert not {"^", "$", "?"} & set(sentence.symbols[1:-1])
    "".join(part for unread in reading.unread for part in unread).encode()  # fit for a report
    assert not {"engine failed", "unknown phone"} & {unread.reason for unread in reading.unread}


# Without a library.

LABEL = "x^x-{}+x=x/A:0+1+1/B:x/C:x/D:x/E:xx_xx!xx_xx-xx/F:x"


class FakeEngine:
    """Says each character of a sentence as a phone of that name; fails for those with an x, and is silent for ."""

    version = "fake 1"

    def analyse(self, sentences):
        if any("x" in sentence for sentence in sentences):
            raise RuntimeError("no x")
        return [
            Analysis(
                [LABEL.format(phone) for phone in text if phone != "."], [Word(text, spoken=True, in_dictionary=True)]
            )
            for text in sentences
        ]


def test_one_failing_sentence_does_not_take_the_others():
    reading = FrontEnd(FakeEngine()).read("k\nx\nm")
    assert [sentence.symbols for sentence in reading.sentences] == [["^", "k", "$"], ["^", "m", "$"]]
    assert reading.unread == [Unread("x", "engine failed", "x")]


def test_a_phone_outside_the_inventory_becomes_a_pause_and_is_reported():
    reading = FrontEnd(FakeEngine()).read("kqm")
    assert reading.sentences[0].symbols == ["^", "k", "_", "m", "$"]
    assert reading.unread == [Unread("q", "unknown phone", "kqm")]


def test_options_are_checked():
    with pytest.raises(UserError, match=r"'off'.*keep, fold"):
        FrontEnd(FakeEngine(), devoiced="off")
    with pytest.raises(UserError, match=r"'mecab'.*haqumei, pyopenjtalk-plus"):
        make_engine("mecab")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_library_is_named(monkeypatch, engine):
    monkeypatch.setitem(sys.modules, MODULES[engine], None)
    with pytest.raises(MissingExtraError, match=rf"{engine}.*hayakuchi\[speech\]"):
        make_engine(engine)


def test_a_dictionary_that_cannot_be_unpacked(monkeypatch, tmp_path):
    haqumei = pytest.importorskip("haqumei")

    def fail():
        raise RuntimeError("read-only file system")

    monkeypatch.setattr(haqumei, "Haqumei", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"read-only file system.*XDG_CACHE_HOME"):
        make_engine("haqumei")


def test_reading_is_fast_enough_to_prepare_a_corpus(front_end):
    texts = ["今日はとても良い天気なので、川まで散歩に行きました。"] * 200
    start = time.perf_counter()
    front_end.read_all(texts)
    # Thousands of clips take minutes at the most, on the slowest machine.
    assert time.perf_counter() - start < 20
