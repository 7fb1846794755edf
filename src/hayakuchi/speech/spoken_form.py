"""Text as it is read out: the spelling that dictionaries know, and signs that have a reading spelt out.

On top of the policy "nfkc" of `text.normalise`, which keeps what one may want to see in a text: signs without sound
go, signs that stand for words become them (㈱, ½, ㎏), and notations of times, dates, ratios, ranges, negative numbers
and currencies are put in words, since OpenJTalk reads their marks as pauses. A unit that is written twice, as a sign
and as a word (¥1,000円, 10%パーセント), is read once. Latin letters lose their accents, with which it knows no word.
"""

import re
import unicodedata

from hayakuchi.text.normalise import normalise

# Variation selectors, joiners, direction marks, soft hyphens, keycaps, tags: they change how a character looks.
_SILENT = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20e3\u3164"
    "\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
# Signs whose NFKC form can be read. Not the plain circled numbers, Roman numerals, ℃ and ℉, which OpenJTalk knows.
_SIGNS = re.compile(
    "[\u00aa\u00b2\u00b3\u00b9\u00ba\u00bc-\u00be\u203c\u2047-\u2049\u2070-\u209f\u2100-\u2102\u2104-\u2108\u210a-\u214f\u2150-\u215f"
    "\u2189\u2474-\u24ff\u309f\u30ff\u3200-\u33ff\U0001f100-\U0001f265]"
)
_WORDS = {"㈱": "株式会社", "㈲": "有限会社", "㈹": "代表", "㊑": "株式会社", "㊒": "有限会社"}
_CHARACTERS = str.maketrans({"～": "〜", "ヷ": "ヴァ", "ヸ": "ヴィ", "ヹ": "ヴェ", "ヺ": "ヴォ", "\t": " "})
_CURRENCIES = {
    "¥": "円",
    "￥": "円",
    "$": "ドル",
    "＄": "ドル",
    "€": "ユーロ",
    "£": "ポンド",
    "￡": "ポンド",
    "¢": "セント",
    "₩": "ウォン",
    "₹": "ルピー",
    "₽": "ルーブル",
    "฿": "バーツ",
    "₫": "ドン",
    "₱": "ペソ",
    "₺": "リラ",
    "US$": "米ドル",
    "C$": "カナダドル",
    "CA$": "カナダドル",
    "A$": "豪ドル",
    "AU$": "豪ドル",
    "NZ$": "NZドル",
    "HK$": "香港ドル",
    "NT$": "台湾ドル",
    "S$": "シンガポールドル",
    "R$": "レアル",
    "CN¥": "人民元",
    "JP¥": "円",
    "JPY": "円",
    "USD": "米ドル",
    "EUR": "ユーロ",
    "GBP": "ポンド",
    "CNY": "人民元",
    "RMB": "人民元",
    "KRW": "ウォン",
    "AUD": "豪ドル",
    "CAD": "カナダドル",
    "CHF": "スイスフラン",
}
# Spelt after a sign that says the same; the sign goes, and the word stays.
_UNIT_WORDS = {
    "[%％]": "パーセント",
    "‰": "パーミル",
    "℃|° ?C|°": "度",
    "t": "トン",
    "kg": "キログラム|キロ",
    "g": "グラム",
    "mg": "ミリグラム|ミリ",
    "km": "キロメートル|キロ",
    "m": "メートル",
    "cm": "センチメートル|センチ",
    "mm": "ミリメートル|ミリ",
    "[Ll]": "リットル",
    "m[Ll]": "ミリリットル|ミリ",
    "k[Ww]": "キロワット|キロ",
    "W": "ワット",
    "V": "ボルト",
    "Hz": "ヘルツ",
    "kHz": "キロヘルツ|キロ",
    "km/h": "キロメートル毎時|キロ毎時",
    "KB": "キロバイト",
    "MB": "メガバイト|メガ",
    "GB": "ギガバイト|ギガ",
    "TB": "テラバイト|テラ",
}

# A pattern that starts with a run starts at the run's first character only, which keeps each linear in the text.
_DATE = re.compile(r"(?<![\d/.-])(1[6-9]\d\d|2[01]\d\d)([/.-])(0?[1-9]|1[0-2])\2(0?[1-9]|[12]\d|3[01])(?![\d/.-]*\d)")
_TIME = re.compile(r"(?<![\d:：])([01]?\d|2[0-4])[:：]([0-5]\d)(?:[:：]([0-5]\d))?(?![:：]?\d)")
_RATIO = re.compile(r"(?<=\d)[:：](?=\d)")
_NUMERALS = "十百千万億兆"
_CODES = "|".join(re.escape(mark) for mark in _CURRENCIES if mark[0].isalpha())
_MARK = rf"(?:(?<![A-Za-z])(?:{_CODES})|[{''.join(mark for mark in _CURRENCIES if len(mark) == 1)}])"
_MONEY_WORD = rf"(?:{'|'.join(sorted(set(_CURRENCIES.values()), key=len, reverse=True))}|元(?![日年旦気]))"
_AMOUNT = rf"\d+(?:,\d{{3}})*(?:\.\d+)?[{_NUMERALS}]*"
_MONEY = re.compile(
    rf"(?:({_MARK})|(?<!\d)({_MARK}) )([-−－]?)({_AMOUNT})(?: ?({_MONEY_WORD}))?(?: ?{_MARK}(?! ?[A-Za-z\d]))?"
)
_MONEY_AFTER = re.compile(
    rf"(?<=[\d{_NUMERALS}])(?: ?({_MARK})(?![A-Za-z\d])(?: ?({_MONEY_WORD}))?|({_MONEY_WORD}) ?{_MARK}(?! ?[A-Za-z\d]))"
)
_UNIT_TWICE = re.compile(
    rf"(?<=[\d{_NUMERALS}])(?:"
    + "|".join(rf"(?:{sign}|{words}) ?(?=(?:{words})(?![ァ-ヺー]))" for sign, words in _UNIT_WORDS.items())
    + ")"
)
_RANGE = re.compile(r"(?<=[\d%％℃年月日時分秒円人個歳度])[〜](?=\d)")
_MINUS = re.compile(r"(?<![\w)）.])[-−－](?=\d)|(?<![A-Za-z0-9_)）.])−(?=\d)|(?<!\d)-(?=\d+(?:\.\d+)?[℃度])")
_EQUALS = re.compile(r"(?<=[0-9A-Za-z]) ?[=＝] ?(?=[0-9A-Za-z-])")
_NAME_DASH = re.compile(r"(?<=[ァ-ヿ])[=＝](?=[ァ-ヿ])")
_CELSIUS = re.compile(r"° ?C(?![A-Za-z])")
_DEGREES = re.compile(r"(?<=\d)°")
_ACCENTED = re.compile("[À-ɏḀ-ỿ]")
_POINT = re.compile(r"(?<=\d)．(?=\d)")
_COMMA = re.compile(r"(?<=\d)，(?=\d{3})")
_DOT = re.compile(r"(?<=[a-z0-9])[.．](?=[a-z])")


def spoken_form(text: str) -> str:
    """The text as described above; line feeds stay.

    Raises for no text, takes time linear in the text.
    """
    # The silent ones go first, for they may stand between a letter and its mark.
    text = normalise(_SILENT.sub("", normalise(text, "none")), "nfkc")
    text = _SIGNS.sub(_read_sign, text).translate(_CHARACTERS)
    text = _ACCENTED.sub(_plain_letter, _COMMA.sub(",", _POINT.sub(".", text)))
    text = _NAME_DASH.sub("・", _DEGREES.sub("度", _CELSIUS.sub("℃", _UNIT_TWICE.sub("", text))))
    text = _DATE.sub(r"\1年\3月\4日", text)
    text = _RATIO.sub("対", _TIME.sub(_read_time, text))
    text = _MONEY_AFTER.sub(_read_money_after, _MONEY.sub(_read_money, text))
    text = _MINUS.sub("マイナス", _RANGE.sub("から", text))
    return _DOT.sub("ドット", _EQUALS.sub("イコール", text))


def _plain_letter(match: re.Match[str]) -> str:
    letter = unicodedata.normalize("NFD", match[0])[0]
    return letter if letter.isascii() else match[0]


def _read_sign(match: re.Match[str]) -> str:
    sign = match[0]
    if sign in _WORDS:
        return _WORDS[sign]
    plain = unicodedata.normalize("NFKC", sign)
    numerator, slash, denominator = plain.partition("⁄")
    if not (slash and denominator):
        return plain
    before = match.string[max(match.start() - 1, 0) : match.start()]
    return f"{'と' if before.isdecimal() else ''}{denominator}分の{numerator}"


def _read_money(match: re.Match[str]) -> str:
    mark, spaced_mark, minus, amount, word = match.groups()
    after_digit = match.string[max(match.start() - 1, 0) : match.start()].isdecimal()
    sign = "マイナス" if minus else ""
    return ("、" if after_digit else "") + sign + amount + (word or _CURRENCIES[mark or spaced_mark])


def _read_money_after(match: re.Match[str]) -> str:
    mark, word_after, word_before = match.groups()
    return str(word_after or word_before or _CURRENCIES[mark])


def _read_time(match: re.Match[str]) -> str:
    hours, minutes, seconds = match.groups()
    spoken = f"{int(hours)}時" + (f"{int(minutes)}分" if int(minutes) or seconds else "")
    return spoken + (f"{int(seconds)}秒" if seconds else "")
