"""The Wikipedia reader: what of a page a reader sees, and dumps that are long, odd or broken."""

import bz2
import gzip
import io
import lzma
import time
import tracemalloc
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.corpora import wikitext
from hayakuchi.corpora.document import Document, Dropped
from hayakuchi.corpora.wikipedia import PAGE_LIMIT_BYTES, WikipediaReader
from hayakuchi.corpora.wikitext import clean
from hayakuchi.errors import UserError

PAGE = """{{Otheruses|架空の港町|同名の駅|汐見駅}}
{{Infobox 町
| 名称 = 汐見町
| 画像 = [[ファイル:Shiomi.jpg|250px|港の[[写真]]]]
| 面積 = {{convert|12|km2}}
}}
[[ファイル:Map of Shiomi.svg|thumb|left|汐見町の[[地図]]。{{color|red|赤}}が港。]]
'''汐見町'''（しおみちょう、{{lang-en|Shiomi}}）は、{{ルビ|東京|とうきょう}}から船で三日の\
[[港湾|港]]町である<ref name="a">『港の{{lang|en|book}}』[[汐見新聞]]、1999年。</ref>。\
<!-- 要確認 -->人口は約五千人<ref name="a" />で、漁業が盛ん{{要出典|date=2020年}}である。

== 歴史 ==
{| class="wikitable"
! 年 !! 出来事
|-
| 1901 || [[灯台]]の完成
{|
| 入れ子
|}
|}
町の名は{{読み仮名|潮見|しおみ}}の丘に由来し、{{仮リンク|燈台守|en|Keeper|label=灯台守}}の{{要出典範囲|日記に詳しい}}。

* 祭りは''七月''にある。
* [http://example.com/ 町の記録]が残る。

== 脚注 ==
{{脚注ヘルプ}}
=== 注釈 ===
<references group="注" />
=== 出典 ===
{{Reflist}}
== 関連項目 ==
* [[灯台]]
== 外部リンク ==
* [http://example.com/ 公式サイト]
[[Category:架空の町]]
"""

EXPECTED = """汐見町（しおみちょう、英語: Shiomi）は、東京から船で三日の港町である。人口は約五千人で、漁業が盛んである。

歴史
町の名は潮見の丘に由来し、灯台守の日記に詳しい。

祭りは七月にある。
町の記録が残る。"""


def page(text: str, title: str = "汐見町", namespace: str = "0", end: str = "\n") -> str:
    parts = [
        "<page>",
        f"<title>{escape(title)}</title>",
        f"<ns>{namespace}</ns>",
        "<id>1</id>",
        "<revision>",
        "<id>2</id>",
        f'<text bytes="1" xml:space="preserve">{escape(text)}</text>',
        "</revision>",
        "</page>",
        "",
    ]
    return end.join(parts)


def dump(*pages: str, end: str = "\n") -> str:
    head = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="ja">'
    site = "<siteinfo><sitename>試験</sitename></siteinfo>"
    return end.join([head, site, "".join(pages) + "</mediawiki>"])


def documents(reader):
    return [document for record in reader.records() for document in reader.parse(record)]


# --- What a reader sees ---------------------------------------------------------------------------------------------


def test_t7_sentences_whole_and_the_rest_gone():
    assert clean(PAGE) == EXPECTED


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("", ""),
        ("{{ルビ|山|やま}}と<ruby>川<rp>(</rp><rt>かわ</rt><rp>)</rp></ruby>", "山と川"),
        ("{{読み仮名|甲|こう|1900年生}}は", "甲（1900年生）は"),
        ("{{読み仮名_ruby不使用|甲|こう|1900年生}}は", "甲（こう、1900年生）は"),
        ("{{仮リンク|甲|en|A}}と{{仮リンク|乙|en|B|label=丙}}", "甲と丙"),
        ("{{lang|en|''Book''}}、{{Lang-fr|livre}}、{{lang-xx|a}}", "Book、フランス語: livre、a"),
        ("{{要出典範囲|date=2020年1月|文}}、{{独自研究範囲|1=x=y}}。", "文、x=y。"),
        ("{{convert|5|km|mi}}と{{cvt|5|to|6|kg}}", "5キロメートルと5–6キログラム"),
        ("本{{Harvnb|山田|2000|p=3}}文{{未知の雛形|値|{{lang|en|x}}}}。", "本文。"),
        ("[[東京]]、[[東京都|都]]、[[:Category:町]]、[[東京|{{ルビ|京|きょう}}|端]]", "東京、都、Category:町、京|端"),
        ("前[[File:a.jpg|thumb|説明[[b|c]]と[http://d e]]]後[[Category:甲]][[en:A]]", "前後"),
        ("[https://example.com 役所]と[https://example.com]", "役所と"),
        ("（{{IPA-xx}}、 1900年）甲（、）乙（{{未知}}）丙（ ）", "（1900年）甲乙丙"),
        ("甲&nbsp;乙&lt;丙&amp;", "甲 乙<丙&"),
        ("甲<nowiki>'''乙'''</nowiki><math>x</math><gallery>\na.jpg|丁\n</gallery>", "甲'''乙'''"),
        ("__NOTOC__甲{{デフォルトソート:こう}}{{formatnum:12}}{{!}}", "甲12|"),
        ("__目次非表示__甲の__init__", "甲の__init__"),
        (f"甲&#{'9' * 5_000};乙", "甲乙"),
        ("甲<br/>乙<div style='a'>丙</div>", "甲\n乙\n丙"),
        ("* 一\n** 二\n# 三\n:四\n; 五: 六\n----", "一\n二\n三\n四\n五: 六"),
        ("== 空 ==\n{{未知}}\n== 甲 ==\n=== 乙 ===\n文\n=== 空 ===\n== 空 ==", "甲\n乙\n文"),
        ("== 出典・参考文献 ==\n無\n=== 小 ===\n無\n== 参考人 ==\n有", "参考人\n有"),
        ("== 注釈および出典 ==\n無\n== 脚注 と 外部リンク ==\n無\n== と ==\n有", "と\n有"),
        ("甲<ref>閉じない\n乙", "甲閉じない\n乙"),
        ("甲<!-- 閉じない 乙", "甲"),
        ("{{Infobox\n| 名 = 甲\n| 数 = 1\n\n本文。", "Infobox\n\n本文。"),
        ("甲[[乙{{lang|en|x}}]]丙}}丁]]", "甲乙x丙丁"),
        ("!と叫んだ。\n{|\n|-\n! 年\n!月!!日\n!style=x|時\n| 1", "!と叫んだ。"),
        ("𠮟る、葛󠄀、👨‍👩‍👧。", "𠮟る、葛󠄀、👨‍👩‍👧。"),
    ],
)
def test_clean(source, seen):
    assert clean(source) == seen


PROSE = st.text(st.sampled_from("あ漢Aー々。、 "), min_size=1, max_size=6)
WELL_FORMED = st.recursive(
    PROSE,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        inner.map(lambda x: f"[[頁|語{x}]]"),
        inner.map(lambda x: f"[[ファイル:a.jpg|thumb|{x}]]"),
        inner.map(lambda x: f"{{{{lang|en|{x}}}}}"),
        inner.map(lambda x: f"{{{{ルビ|{x}|よみ}}}}"),
        inner.map(lambda x: f"{{{{未知|値|名={x}}}}}"),
        inner.map(lambda x: f"\n{{|\n| {x}\n|}}\n"),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, database=None)
@given(WELL_FORMED)
def test_well_formed_pages_are_read_as_mwparserfromhell_reads_them(source):
    mwparserfromhell = pytest.importorskip("mwparserfromhell")

    def seen(code) -> str:
        parts = []
        for node in code.nodes:
            match type(node).__name__:
                case "Text":
                    parts.append(str(node))
                case "Wikilink" if not str(node.title).startswith("ファイル:"):
                    parts.append(seen(node.text))
                case "Template" if str(node.name) in ("lang", "ルビ"):
                    parts.append(seen(node.params[1 if node.name == "lang" else 0].value))
        return "".join(parts)

    def without_spaces(text: str) -> str:
        return "".join(text.split())

    assert without_spaces(wikitext._resolve_brackets(source)) == without_spaces(seen(mwparserfromhell.parse(source)))


MARKS = (
    "{{ }} [[ ]] {| |} | \n = == ' '' ''' <ref> </ref> <ref/> <!-- --> <nowiki> </nowiki> < > & &#91; &lt; [ ] { } "
    "[http://a （ ） 、 * # : ; lang ルビ ファイル: 脚注 あ x <div> __ {{lang|en| {{読み仮名|a|b}} <re f \0 \ud800"
)


@settings(max_examples=400, deadline=None, database=None)
@given(st.lists(st.one_of(st.sampled_from(MARKS.split(" ")), st.text(max_size=3)), max_size=40).map("".join))
def test_no_page_breaks_clean_or_leaves_markup(source):
    text = clean(source)
    assert not [mark for mark in ("{{", "}}", "[[", "]]", "<ref", "</ref") if mark in text.lower()]
    assert text == text.strip("\n")
    assert "\n\n\n" not in text


@pytest.mark.parametrize(
    "unit",
    [
        "{{a|",
        "[[a|",
        "<ref>",
        "{|\n",
        "[http://a ",
        "<",
        "== ",
        "（",
        "{{a|[[b|<ref>''",
        "&",
        "]]",
        "\n",
        "{{a}}",
        "参考文献",
    ],
)
def test_time_grows_with_the_page_and_no_faster(unit):
    # mwparserfromhell takes minutes for several of these.
    started = time.process_time()
    clean(unit * (200_000 // len(unit)))
    assert time.process_time() - started < 5


# --- Dumps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", ""])
def test_t8_a_dump_on_one_line_gives_its_pages(tmp_path, end):
    path = tmp_path / "dump.xml"
    path.write_text(dump(page(PAGE, end=end), page("短い。", "二頁", end=end), end=end), encoding="utf-8")
    assert documents(WikipediaReader(path)) == [
        Document(EXPECTED, f"{path}!汐見町", "wikipedia", "汐見町"),
        Document("短い。", f"{path}!二頁", "wikipedia", "二頁"),
    ]


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(data)


@pytest.mark.parametrize(
    "compress",
    [bz2.compress, gzip.compress, lzma.compress, zstd, lambda data: bz2.compress(data[:50]) + bz2.compress(data[50:])],
    ids=["bz2", "gz", "xz", "zst", "multistream"],
)
def test_compressed_dumps_and_folders_of_parts(tmp_path, compress):
    (tmp_path / "a.xml-p1p9.bz2").write_bytes(compress(dump(page("一。", "甲")).encode()))
    (tmp_path / "b.xml").write_text(dump(page("二。", "乙")), encoding="utf-8")
    (tmp_path / "index.txt").write_text("他のもの", encoding="utf-8")
    found = documents(WikipediaReader(tmp_path, code="百科"))
    assert [(d.text, d.title, d.code) for d in found] == [("一。", "甲", "百科"), ("二。", "乙", "百科")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#REDIRECT [[東京]]", "redirect"),
        ("#転送 [[東京]]", "redirect"),
        ("甲には次の意味がある。\n* [[甲 (町)]]\n{{aimai}}", "disambiguation page"),
        ("* [[甲]]\n{{人名の曖昧さ回避|こう}}", "disambiguation page"),
        ("{{未知}}", "empty"),
        ("", "empty"),
        ("あ" * (PAGE_LIMIT_BYTES // 3 + 1), "page too long"),
        ("a" * (PAGE_LIMIT_BYTES * 2), "page too long"),
    ],
)
def test_pages_that_are_no_articles_are_dropped_with_the_reason(tmp_path, text, reason):
    path = tmp_path / "dump.xml"
    path.write_text(dump(page(text)), encoding="utf-8")
    (dropped,) = documents(WikipediaReader(path))
    assert isinstance(dropped, Dropped)
    assert (dropped.origin, dropped.reason) == (f"{path}!汐見町", reason)


def test_other_namespaces_are_left_out_and_of_revisions_the_last_is_taken(tmp_path):
    history = page("古い。").replace("</page>", "<revision><text>新しい。</text></revision></page>")
    path = tmp_path / "dump.xml"
    path.write_text(
        dump(page("議論。", "ノート:甲", "1"), history, page("雛形", "Template:甲", "10")), encoding="utf-8"
    )
    assert [document.text for document in documents(WikipediaReader(path))] == ["新しい。"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no element found"),
        (b"<html><page></page></html>", "outermost element is <html>"),
        (b'{"title": "a"}', "not well-formed"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><mediawiki/>', "document type"),
        (dump().encode(), "no article"),
        (dump(page("議論。", "ノート:甲", "1")).encode(), "no article"),
    ],
)
def test_what_is_no_dump_is_named(tmp_path, content, message):
    path = tmp_path / "dump.xml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        documents(WikipediaReader(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "breakage",
    [
        lambda data: data[: data.rindex(b"<page>") + 30],
        lambda data: data.replace(b"<title>\xe4\xb8\x89", b"<tit<le>"),
        lambda data: data.replace(b"\xe4\xb8\x89", b"\xff"),
        lambda data: bz2.compress(data)[:-20],
        lambda data: gzip.compress(data, mtime=0)[:-12],
    ],
    ids=["cut off", "bad tag", "bad bytes", "cut-off bz2", "cut-off gz"],
)
def test_a_broken_dump_is_an_error_after_the_pages_before(tmp_path, breakage):
    whole = dump(page("一。", "一"), page("二。", "二"), page("三。", "三"))
    path = tmp_path / "dump.xml"
    path.write_bytes(breakage(whole.encode()))
    read = []
    with pytest.raises(UserError, match="cut off") as caught:
        read.extend(record.title for record in WikipediaReader(path).records())
    assert str(path) in str(caught.value)
    if path.read_bytes().startswith(b"<mediawiki"):
        assert "after 2 articles" in str(caught.value)


def test_pages_before_a_break_have_been_given(tmp_path):
    path = tmp_path / "dump.xml"
    path.write_text(dump(page("一。", "一"), page("二。", "二"))[:-40], encoding="utf-8")
    records = WikipediaReader(path).records()
    assert next(records).title == "一"
    with pytest.raises(UserError, match="after 1 articles"):
        next(records)


@pytest.mark.parametrize("missing", ["none.xml", "."])
def test_a_missing_file_and_a_folder_without_dumps(tmp_path, missing):
    with pytest.raises(UserError, match=str(tmp_path)):
        documents(WikipediaReader(tmp_path / missing))


@pytest.mark.parametrize("end", ["\n", ""])
def test_memory_does_not_grow_with_the_dump(tmp_path, end):
    path = tmp_path / "dump.xml.gz"
    body = page("港の町には古い灯台がある。" * 1_000, end=end)
    with io.TextIOWrapper(gzip.open(path, "wb", compresslevel=1), encoding="utf-8") as file:
        file.write(dump(end=end).removesuffix("</mediawiki>"))
        for _ in range(500):  # 20 MB
            file.write(body)
        file.write("</mediawiki>")
    tracemalloc.start()
    try:
        size = sum(len(record.data) for record in WikipediaReader(path).records())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 19_000_000
    assert peak < 4_000_000
