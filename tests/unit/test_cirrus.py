"""CirrusSearch dumps: articles from wikitext where it is given, else from the text without its references."""

import gzip
import json
import time

import pytest

from hayakuchi.corpora.cirrus import CirrusReader, drop_references
from hayakuchi.corpora.document import Document, Dropped
from hayakuchi.errors import UserError

RENDERED = (
    "汐見町は港町である[1]。人口は約五千人[注 2]で、漁業が盛ん[要出典]である。灯台は1901年に建った［３］。 "
    "脚注 ^ 山田『港の本』2000年、3頁。 ^ a b “町の記録”. 汐見新聞. 2012年1月1日閲覧。 関連項目 灯台"
)


def dump(*pages) -> bytes:
    pairs = [({"index": {"_type": "page", "_id": str(number)}}, page) for number, page in enumerate(pages)]
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for pair in pairs for value in pair).encode()


def results(path):
    reader = CirrusReader(path)
    return [result for record in reader.records() for result in reader.parse(record)]


def test_t10_references_in_text_are_removed(tmp_path):
    path = tmp_path / "cirrussearch-content.json.gz"
    path.write_bytes(gzip.compress(dump({"namespace": 0, "title": "汐見町", "text": RENDERED})))
    text = "汐見町は港町である。人口は約五千人で、漁業が盛んである。灯台は1901年に建った。"
    assert results(path) == [Document(text, f"{path}:2", "wikipedia", "汐見町")]


def test_wikitext_is_preferred(tmp_path):
    path = tmp_path / "content.json"
    source = "'''汐見町'''は[[港町]]である<ref>本</ref>。\n== 脚注 ==\n{{Reflist}}"
    path.write_bytes(dump({"namespace": 0, "title": "汐見町", "text": RENDERED, "source_text": source}))
    assert [document.text for document in results(path)] == ["汐見町は港町である。"]


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("", ""),
        ("文。", "文。"),
        ("一[1][2][注釈 3][a]。二[いつ?]。三[疑問点 – ノート]。", "一。二。三。"),
        ("一。\n二。\n脚注\n^ 本\n関連項目\n灯台", "一。\n二。"),
        ("一。\n== 出典・参考文献 ==\n本", "一。"),
        ("一。\n^ 本。\n^ 別の本。\n二。", "一。\n二。"),
        ("一。↑ 本。", "一。"),
        ("式x ^ 2 は放物線である。次の文。", "式x ^ 2 は放物線である。次の文。"),
        ("f(x) ^ 2 と y ^ 2 の和。次の文。 注釈 [編集] ^ 山田『本』。", "f(x) ^ 2 と y ^ 2 の和。次の文。"),
        ("本文 ^ 山田『本』 2頁 ^ 町の記録。", "本文"),
        ("本文 脚注 ^ 山田『本』", "本文"),
        ("2^3は8、x ^2も[2024]も配列[n]も残る。", "2^3は8、x ^2も[2024]も配列も残る。"),
        ("一\nと\n・\n二", "一\nと\n・\n二"),
        ("出典を探す話。脚注の話。", "出典を探す話。脚注の話。"),
    ],
)
def test_drop_references(text, prose):
    assert drop_references(text) == prose


def test_long_lines_take_time_in_proportion():
    blanks = " " * 100_000
    hostile = [unit * 100_000 for unit in ("^ ", "[", "[注", " ", "。^", "[1]", "a ^ ")]
    for text in (*hostile, f"[{blanks}", f"[注{blanks}", f"[1{blanks}", f"[1{blanks}-{blanks}"):
        begin = time.process_time()
        drop_references(text)
        assert time.process_time() - begin < 2  # a quadratic pattern takes half a minute


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ({"namespace": 1, "title": "ノート:甲", "text": "議論"}, "not an article"),
        ({"namespace": 0, "title": "甲", "text": "多義", "source_text": "* [[甲]]\n{{aimai}}"}, "disambiguation page"),
        ({"namespace": 0, "title": "甲", "text": "転送", "source_text": "#転送 [[乙]]"}, "redirect"),
        ({"namespace": 0, "title": "甲"}, "no text"),
        ({"title": ["甲"], "text": 3, "source_text": {}}, "no text"),
        ({"title": "甲", "text": "^ 本だけ"}, "empty"),
        ({"title": "甲", "text": "文", "source_text": "あ" * 1_000_000}, "page too long"),
        (["甲"], "not JSON"),
    ],
)
def test_what_is_no_article_is_dropped(tmp_path, page, reason):
    path = tmp_path / "content.json"
    path.write_bytes(dump(page, {"title": "乙", "text": "次。"}))
    dropped, document = results(path)
    assert isinstance(dropped, Dropped)
    assert (dropped.origin, dropped.reason) == (f"{path}:2", reason)
    assert (document.text, document.origin) == ("次。", f"{path}:4")


def test_lone_surrogates_never_come_through(tmp_path):
    path = tmp_path / "content.json"
    path.write_text(r'{"title": "\ud800", "text": "\udc00文"}' + "\n" + r'{"title": "b", "source_text": "\ud800文"}')
    for document in results(path):
        assert document.text == "\ufffd文"
        document.title.encode()


@pytest.mark.parametrize("content", [b"", gzip.compress(b'{"index"', mtime=0)[:-9]])
def test_empty_and_damaged_dumps(tmp_path, content):
    path = tmp_path / "content.json.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"content\.json\.gz"):
        results(path)


def test_a_folder_of_parts_and_its_size(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.json").write_bytes(dump({"title": name, "text": "文。"}))
    assert [document.title for document in results(tmp_path)] == ["a", "b"]
    reader = CirrusReader(tmp_path)
    assert reader.size_bytes() == sum(len(record.data) for record in reader.records())
