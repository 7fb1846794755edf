"""Transcripts in another language than Japanese are noticed; Japanese without kana is not taken for one."""

import pytest

from hayakuchi.speech.languages import other_language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("今天天气很好，我们去公园吧。", "Chinese"),
        ("這是我的書。", "Chinese"),
        ("我在学校学习中文。", "Chinese"),
        ("Hello, how are you?", "English"),
        ("오늘은 날씨가 좋다.", "Korean"),
        ("了解。", ""),
        ("東京都千代田区永田町一丁目。", ""),
        ("髙橋𠮷郎、鷗外、剝製。", ""),
        ("目的地到着。", ""),
        ("Helloと言った。", ""),
        ("ﾊﾝｶｸ", ""),
        ("NHK。", ""),
        ("iPhone 15", ""),
        ("한국という国。", ""),
        ("", ""),
        ("\ud800。", ""),
    ],
)
def test_the_language_of_a_transcript(text, language):
    assert other_language(text) == language
