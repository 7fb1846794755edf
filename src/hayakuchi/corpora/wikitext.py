"""Wikitext -> the text that a reader of the page would see.

Own code and not mwparserfromhell, which is made to edit pages without loss: it reads about 1 MB/s (this: 13), and
80 kB of unclosed "{{a|" cost it two minutes, so that one broken page would stop a worker. Here every step takes time
proportional to the page, whatever stands in it. The tests hold the two to each other on well-formed pages.
"""

import html
import re

# Nobody nests deeper on purpose; MediaWiki itself stops at 40 templates.
_MAX_DEPTH = 40

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)\b([^<>]*)>")
# What these hold is not prose, or (`rt`, `rp`) is the reading over a word.
_DROPPED_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|imagemap|score|hiero|graph|mapframe|maplink|syntaxhighlight|source|"
    "table|rt|rp|style|templatestyles|templatedata|inputbox|categorytree|indicator|includeonly"
)
_BREAKING_TAG = re.compile("br|p|div|center|blockquote|poem|pre|li|ul|ol|dl|dt|dd|hr|h[1-6]")
_INLINE_TAG = re.compile(
    "span|small|big|b|i|u|s|del|ins|em|strong|sup|sub|tt|code|kbd|samp|var|cite|q|font|abbr|dfn|bdi|bdo|mark|ruby|rb|"
    f"rtc|nowiki|noinclude|onlyinclude|section|wbr|time|data|tr|td|th|caption|{_DROPPED_TAGS}"
)
_CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in ("nowiki", *_DROPPED_TAGS.split("|"))}
# What <nowiki> protects, until the entities are resolved at the end.
_SHIELD = str.maketrans({mark: f"&#{ord(mark)};" for mark in "[]{}|'<>=*#:;!_"})

# Atomic, the longer before the shorter: a title is read in one way only.
_SECTION_WORD = (
    "(?>脚注|註釈|注釈|注記|注|註|出典|典拠|(?:参考|引用|関連)文献|参考(?:資料|図書|書籍)|文献|参考|参照|関連項目|"
    "(?:関連|外部)リンク|References|Notes)"
)
_DROPPED_SECTION = re.compile(
    rf"{_SECTION_WORD}(?:(?:[・、，,/／と\s]|および|及び|並びに|ならびに)*+{_SECTION_WORD})*+"
)

# Of "]]]" the first belongs to a "[" inside the link.
_BRACKET = re.compile(r"^[ \t:]*\{\||^[ \t]*\|\}(?!\})|\{\{|\}\}|\[\[|\]\](?!\](?!\]))|\|", re.MULTILINE)
_OPENER = {"}}": "{{", "]]": "[[", "|}": "{|"}
# Files, categories, and links to the same page in another language.
_HIDDEN_LINK = re.compile(
    r"\s*+(?:(?i:file|image|media|category|ファイル|画像|メディア|カテゴリ)\s*+:|(?!mw:|voy:|doi:)[a-z]{2,3}(?:-[a-z]+)*:)"
)

# Templates whose text is part of the sentence, by the parameter that is seen; names in small letters.
_SHOWS_FIRST = re.compile(
    "ルビ|ruby|ふりがな|振り仮名|ill|行内引用|c?quote|quotation|blockquote|nowrap|nobr|small(er)?|big|larger?|strong|em|"
    "su[pb]|underline|下線|smallcaps|abbr|vanchor|visible anchor|unicode|ipa2?|補助漢字フォント|拡張漢字|"
    "(cp932|jis90|jis2004)フォント|by|ly|fy|mlby|flag|math|mvar|num|"
    ".*範囲2?"  # {{要出典範囲|...}} ...: a remark on a stretch of text
)
_SHOWS_SECOND = re.compile("lang|(font ?)?color|font|resize|audio|transl")
_MARKS = {"!": "|", "=": "=", "'": "'", "·": "・", "・": "・", "ndash": "–", "mdash": "—", "nbsp": " ", "br": "\n"}
_PAIR = re.compile(r"(\S+)=(\S+)")
# {{lang-en|Tokyo}} shows 英語: Tokyo.
_LANGUAGES: dict[str, str] = dict(
    _PAIR.findall(
        "en=英語 fr=フランス語 de=ドイツ語 it=イタリア語 es=スペイン語 pt=ポルトガル語 la=ラテン語 el=ギリシア語 "
        "grc=古代ギリシア語 nl=オランダ語 ru=ロシア語 uk=ウクライナ語 pl=ポーランド語 sv=スウェーデン語 zh=中国語 "
        "ko=朝鮮語 ar=アラビア語 he=ヘブライ語 sa=サンスクリット語 tr=トルコ語 th=タイ語 vi=ベトナム語 ain=アイヌ語 "
        "ja=日本語"
    )
)
_UNITS: dict[str, str] = dict(
    _PAIR.findall(
        "km=キロメートル m=メートル cm=センチメートル mm=ミリメートル kg=キログラム g=グラム t=トン l=リットル "
        "km2=平方キロメートル m2=平方メートル ha=ヘクタール mi=マイル ft=フィート in=インチ yd=ヤード lb=ポンド "
        "km/h=キロメートル毎時 m/s=メートル毎秒 mph=マイル毎時 nmi=海里 kw=キロワット c=℃ °c=℃ f=°F °f=°F"
    )
)
_PARAMETER_NAME = re.compile(r"[\w -]{1,30}")

# Possessive quantifiers (`*+`): a failing match never tries shorter ones, so time stays proportional to the text.
_EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftps?:|mailto:|//)[^\s\[\]]*+[ \t　]*+([^\[\]\n]*+)\]")
_QUOTES = re.compile(r"'{2,}")
# __NOTOC__ and __目次非表示__, but not Python's __init__.
_SWITCH = re.compile(r"__(?:[A-Z]{2,20}|[^\x00-\x7f]{2,20})__")
# `html.unescape` raises for numbers of over 4,300 digits.
_NO_CHARACTER = re.compile(r"&#\d{20,};?")
_SPACES = re.compile(r"[^\S　]+")
_EMPTY_BRACKETS = re.compile(r"[（(][\s、,，;；:：・/／]*+[）)]")
_AFTER_OPENING = re.compile(r"([（(])[\s、,，;；]++")
_BEFORE_CLOSING = re.compile(r"(?<![\s、,，;；])[\s、,，;；]++(?=[）)])")
_LEFT_BRACKETS = re.compile(r"[\[\]{}]{2,}")
# A row of a table or infobox whose end is missing; a "!" alone may begin a sentence.
_TABLE_ROW = re.compile(r"\||! |!.*?(?:!!|\|)")
_LEFT_REF = re.compile(r"(?<!<)<++(?=/?ref)", re.IGNORECASE)


def clean(wikitext: str) -> str:
    """The prose of a page: paragraphs, headings, list items, each a line; a blank line where the page has one.

    Gone are sections of notes and links, tables, references, files with their captions, categories, and every
    template whose text is not known to be part of the sentence round it (see `_show_template`).
    """
    text = _drop_tags(_COMMENT.sub("", wikitext))
    text = _resolve_brackets(_drop_sections(text))
    text = _SWITCH.sub("", _QUOTES.sub("", _EXTERNAL_LINK.sub(r"\1", text)))
    return _join_lines(text)


def _drop_tags(text: str) -> str:
    parts: list[str] = []
    position = 0
    unclosed: set[str] = set()
    while tag := _TAG.search(text, position):
        slash, name, rest = tag[1], tag[2].lower(), tag[3]
        parts.append(text[position : tag.start()])
        position = tag.end()
        if name in _CLOSING and not slash and not rest.rstrip().endswith("/") and name not in unclosed:
            closing = _CLOSING[name].search(text, position)
            if closing is None:
                unclosed.add(name)  # not to be looked for again and again
                continue
            if name == "nowiki":
                parts.append(text[position : closing.start()].translate(_SHIELD))
            position = closing.end()
        elif _BREAKING_TAG.fullmatch(name):
            parts.append("\n")
        elif not _INLINE_TAG.fullmatch(name):
            parts.append(tag[0])
    parts.append(text[position:])
    return "".join(parts)


def _heading(line: str) -> tuple[int, str] | None:
    """Level and title of "== title =="."""
    line = line.strip()
    level = min(len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("=")), 6)
    title = line[level:-level].strip() if level else ""
    return (level, title) if title else None


def is_dropped_section(title: str) -> bool:
    """Whether a section of that title holds notes, sources or links: 脚注, 出典・参考文献 ..."""
    return _DROPPED_SECTION.fullmatch(title) is not None


def _drop_sections(text: str) -> str:
    kept: list[str] = []
    dropped_level = 0
    for line in text.split("\n"):
        if line.startswith("=") and (heading := _heading(line)):
            level, title = heading
            if not dropped_level or level <= dropped_level:
                dropped_level = level if is_dropped_section(title) else 0
        if not dropped_level:
            kept.append(line)
    return "\n".join(kept)


class _Frame:
    """An open bracket and the pieces of its arguments so far."""

    def __init__(self, opener: str) -> None:
        self.opener = opener
        self.arguments: list[list[str]] = [[]]

    def show(self) -> str:
        """What a reader sees of it once it is closed."""
        arguments = ["".join(pieces) for pieces in self.arguments]
        if self.opener == "[[":
            return _show_link(arguments)
        return _show_template(arguments) if self.opener == "{{" else ""

    def dissolve(self) -> str:
        """Its content as text: it was never closed."""
        return "|".join("".join(pieces) for pieces in self.arguments)


def _resolve_brackets(text: str) -> str:
    """Replaces templates, links and tables, the innermost first.

    A closing bracket ends the nearest opening one of its kind; what was opened in between and never closed is text.
    """
    frames = [_Frame("")]
    position = 0
    for match in _BRACKET.finditer(text):
        frames[-1].arguments[-1].append(text[position : match.start()])
        position = match.end()
        bracket = match[0].strip(" \t:")
        if bracket in ("{{", "[[", "{|"):
            if len(frames) <= _MAX_DEPTH:
                frames.append(_Frame(bracket))
        elif bracket == "|":
            if frames[-1].opener in ("{{", "[["):
                frames[-1].arguments.append([])
            else:
                frames[-1].arguments[-1].append("|")
        elif any(frame.opener == _OPENER[bracket] for frame in frames):
            while frames[-1].opener != _OPENER[bracket]:
                unclosed = frames.pop()
                frames[-1].arguments[-1].append(unclosed.dissolve())
            closed = frames.pop()
            frames[-1].arguments[-1].append(closed.show())
    frames[-1].arguments[-1].append(text[position:])
    while len(frames) > 1:
        unclosed = frames.pop()
        frames[-1].arguments[-1].append(unclosed.dissolve())
    return frames[0].dissolve()


def _show_link(arguments: list[str]) -> str:
    if _HIDDEN_LINK.match(arguments[0]):
        return ""
    label = "|".join(arguments[1:])
    return label if label.strip() else arguments[0].strip().lstrip(":")


def _show_template(arguments: list[str]) -> str:
    name = " ".join(arguments[0].replace("_", " ").split()).lower()
    function, colon, value = name.partition(":")
    if colon:
        return value if function == "formatnum" else ""
    values = _parameters(arguments[1:])
    first, second, third = (values.get(key, "") for key in "123")
    shown = ""
    if _SHOWS_FIRST.fullmatch(name):
        shown = first
    elif _SHOWS_SECOND.fullmatch(name):
        shown = second
    elif name in ("仮リンク", "日本語版にない記事リンク", "ill2"):
        shown = values.get("label") or first
    elif name in ("読み仮名", "読み仮名 ruby不使用"):
        # The reading stands over the word, as ruby, unless the name says otherwise.
        note = "、".join(part for part in ("" if name == "読み仮名" else second, third) if part)
        shown = f"{first}（{note}）" if note else first
    elif name in ("convert", "cvt"):
        shown = _show_measure(values)
    elif name == "val":
        shown = f"{first} {values.get('u', '')}"
    elif name.startswith("lang-") and first:
        language = _LANGUAGES.get(name.removeprefix("lang-"))
        shown = f"{language}: {first}" if language else first
    else:
        shown = _MARKS.get(name, "")
    return shown


def _parameters(arguments: list[str]) -> dict[str, str]:
    """Parameters of a template by name; those without one are "1", "2" ..."""
    values: dict[str, str] = {}
    position = 0
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and _PARAMETER_NAME.fullmatch(name.strip()):
            values[name.strip()] = value.strip()
        else:
            position += 1
            values[str(position)] = argument.strip()
    return values


def _show_measure(values: dict[str, str]) -> str:
    """{{convert|5|km|mi}} -> 5キロメートル, {{convert|5|to|6|km}} -> 5–6キロメートル."""
    amount, unit = values.get("1", ""), values.get("2", "")
    if unit.lower() in ("to", "-", "–", "and", "by", "x", "から"):
        amount, unit = f"{amount}–{values.get('3', '')}", values.get("4", "")
    return amount + _UNITS.get(unit.lower(), unit)


def _join_lines(text: str) -> str:
    """Tidies every line, and leaves out what is empty now: lines, and headings with nothing below."""
    kept: list[str] = []
    below = 0  # level of the next line kept: that of a heading, 7 for text, 0 at the end of the page
    for line in reversed(text.split("\n")):
        heading = _heading(line) if line.startswith("=") else None
        content = heading[1] if heading else line.strip().lstrip("*#:;")
        tidied = "" if _TABLE_ROW.match(content) else _tidy(content)
        level = heading[0] if heading else 7
        if not tidied:
            if kept and kept[-1]:
                kept.append("")
        elif not heading:
            kept.append(tidied)
            below = level
        elif below > level:
            if not kept[-1]:
                kept.pop()
            kept += [tidied, ""]
            below = level
    return "\n".join(reversed(kept)).strip("\n")


def _tidy(line: str) -> str:
    if not line:
        return ""
    line = _SPACES.sub(" ", html.unescape(_NO_CHARACTER.sub("", line)))
    line = _LEFT_REF.sub("", _LEFT_BRACKETS.sub("", line))
    for _ in range(3):  # brackets in brackets, as far as people nest them
        line = _EMPTY_BRACKETS.sub("", line)
    line = _BEFORE_CLOSING.sub("", _AFTER_OPENING.sub(r"\1", line)).strip()
    return line if any(character.isalnum() for character in line) else ""
