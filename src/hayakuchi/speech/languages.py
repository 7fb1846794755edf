"""Transcripts that are probably not Japanese: the front end reads any characters, and reads these wrongly."""

import functools
import re

_KANA = re.compile("[ぁ-ゖァ-ヺｦ-ﾝ]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")
_HAN = re.compile("[\u4e00-\u9fff]")
_WORD = re.compile("[A-Za-z']*[a-z][A-Za-z']*")
# Words of everyday Chinese that Japanese of today does not write.
_CHINESE_WORDS = re.compile("[你您她們這嗎麼很哪啥]")
_LEAST_WORDS = 2


def other_language(text: str) -> str:
    """The language that a text is probably in, "Chinese", "English" or "Korean", or "" for Japanese.

    Text with kana counts as Japanese, whatever else it quotes. Without kana, Chinese is known by characters that no
    Japanese standard has, or by its commonest words; Latin letters without any kanji count as English.
    """
    if _HANGUL.search(text):
        return "" if _KANA.search(text) else "Korean"
    if _KANA.search(text):
        return ""
    characters = _HAN.findall(text)
    if characters:
        foreign = bool(_CHINESE_WORDS.search(text)) or not all(map(_in_japanese_standards, characters))
        return "Chinese" if foreign else ""
    return "English" if len(_WORD.findall(text)) >= _LEAST_WORDS else ""


@functools.lru_cache(maxsize=1 << 14)
def _in_japanese_standards(character: str) -> bool:
    """Whether JIS X 0213 or the extensions of Windows have a character."""
    for encoding in ("cp932", "shift_jis_2004"):
        try:
            character.encode(encoding)
        except UnicodeEncodeError:
            continue
        return True
    return False
