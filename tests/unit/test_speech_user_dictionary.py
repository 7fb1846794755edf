import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.speech.engines import ENGINES
from hayakuchi.speech.frontend import make_front_end
from hayakuchi.speech.user_dictionary import UserWord, compile_user_words, load_user_words

MODULES = {"haqumei": "haqumei", "pyopenjtalk-plus": "pyopenjtalk"}


@pytest.fixture
def write(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "words.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def test_reads_a_file(write):
    path = write(
        '\ufeffsurface,reading,accent\r\n# comment\r\n嗤って, わらって ,0\r\n\r\n"a,b",エービー,3\r\nＡＩ,ｱｲ,1'
    )
    assert load_user_words(path) == [
        UserWord("嗤って", "ワラッテ", 0),
        UserWord("a,b", "エービー", 3),
        UserWord("AI", "アイ", 1),
    ]


@pytest.mark.parametrize(
    ("reading", "moras"),
    [
        ("わらって", 4),
        ("トーキョー", 4),
        ("クァルテット", 5),
        ("デュエット", 4),
        ("ヴァイオリン", 5),
        ("チャーシュー", 4),
        ("アャ", 2),
    ],
)
def test_moras(reading, moras, write):
    path = write(f"語,{reading},{moras}")
    assert load_user_words(path)[0].moras == moras
    with pytest.raises(UserError, match=rf"words\.csv:1: accent '{moras + 1}'.*1\.\.{moras}"):
        load_user_words(write(f"語,{reading},{moras + 1}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no words"),
        ("surface,reading,accent\n", "no words"),
        ("# 語,ゴ,0\n", "no words"),
        ("語,ゴ", ":1: 2 columns"),
        ("語,ゴ,0\n語二,ゴ,0,x", ":2: 4 columns"),
        (",ゴ,0", ":1: surface ''"),
        ("\u200b,ゴ,0", ":1: surface"),
        ("あ" * 101 + ",ゴ,0", ":1: surface"),
        ('"語\n語",ゴ,0', ":2: surface"),
        ("語,,0", ":1: reading ''"),
        ("語,go,0", ":1: reading 'go'"),
        ("語,語,0", ":1: reading '語'"),
        ("語,ー,0", ":1: reading 'ー'"),
        ("語,ゴ ゴ,0", ":1: reading"),
        ("語,ヵ,0", ":1: reading"),
        ("語," + "ゴ" * 101 + ",0", ":1: reading"),
        ("語,ゴ,", ":1: accent ''"),
        ("語,ゴ,-1", ":1: accent '-1'"),
        ("語,ゴ,x", ":1: accent 'x'"),
        ("語,ゴ,1.5", ":1: accent '1.5'"),
        ("語,ゴ," + "9" * 5000, ":1: accent"),
        ("語,ゴ,0\n語,ゴ,1", ":2: '語' stands there twice"),
        ("ＡＩ,アイ,0\nAI,アイ,0", ":2: 'AI' stands there twice"),
    ],
)
def test_a_bad_line_is_named(write, text, message):
    with pytest.raises(UserError) as caught:
        load_user_words(write(text))
    assert message in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_a_bad_file_is_named(write, tmp_path):
    with pytest.raises(UserError, match="not UTF-8"):
        load_user_words(write("語,ゴ,0", "cp932"))
    with pytest.raises(UserError, match="cannot read"):
        load_user_words(tmp_path / "none.csv")
    with pytest.raises(UserError, match="cannot read"):
        load_user_words(tmp_path)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_no_file_crashes(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("words") / "words.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        words = load_user_words(path)
    except UserError:
        return
    assert all(0 <= word.accent <= word.moras for word in words)


def test_the_compiler_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pyopenjtalk-plus"):
        compile_user_words([UserWord("語", "ゴ", 0)], tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_words_are_read_as_registered(engine, write, capfd):
    for module in ("pyopenjtalk", MODULES[engine]):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    path = write(
        "嗤って,わらって,0\n早口,ハヤクチ,3\nC.C.レモン,シーシーレモン,5\n山,サン,1\nHayakuchi,はやくち,4\n"
        '辛い,ツライ,0\n𰻞𰻞麺,ビャンビャンメン,5\nA-1 "x",エーワン,3\n'
    )
    front_end = make_front_end(engine, user_dictionary=path)
    assert capfd.readouterr().out == ""  # a wav may be on its way there
    expected = {
        "自分の勘の良さに嗤ってしまう。": "w a [ r a cl t e #",
        "早口で言う": "^ h a [ y a k u ] ch i d e #",
        "C.C.レモンを飲む": "^ sh i [ i sh i i r e ] m o N o #",
        "山に登る": "^ s a ] N n i #",
        "Hayakuchiを使う": "^ h a [ y a k U ch i ] o #",
        "人生は辛い": "ts u [ r a i $",
        "𰻞𰻞麺": "^ by a [ N by a N m e ] N $",
        'A-1 "x"': "^ e [ e w a ] N $",
    }
    for text, symbols in expected.items():
        reading = front_end.read(text)
        assert symbols in " ".join(reading.sentences[0].symbols), text
        assert reading.unread == [], text
    # A short word does not tear longer ones apart.
    plain = make_front_end(engine)
    for text in ("山本さん", "登山家", "火山"):
        assert front_end.read(text) == plain.read(text)
