"""JSON lines: good ones become documents, bad ones a reason, and nothing is held in memory."""

import bz2
import gzip
import itertools
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest

from hayakuchi.corpora import jsonl
from hayakuchi.corpora.document import Document, Dropped
from hayakuchi.corpora.jsonl import JsonlReader
from hayakuchi.errors import UserError

WIKIPEDIA = Path(__file__).parents[3] / "shared" / "corpora" / "wikipedia_paragraphs.jsonl.xz"


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(data)


COMPRESSORS = pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])


def lines(*values) -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


def results(reader):
    return [result for record in reader.records() for result in reader.parse(record)]


def written(folder: Path, content: bytes, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@COMPRESSORS
def test_compression_is_known_by_the_content(tmp_path, compress):
    path = written(tmp_path, compress(lines({"text": "一行目"}, {"text": "二行目"})), "data")
    assert results(JsonlReader(path)) == [
        Document("一行目", f"{path}:1", "jsonl"),
        Document("二行目", f"{path}:2", "jsonl"),
    ]


@COMPRESSORS
def test_joined_and_cut_off_files(tmp_path, compress):
    content = lines(*({"text": f"{n}番目の文。"} for n in range(5_000)))
    path = written(tmp_path, compress(content) + compress(content))
    assert len(results(JsonlReader(path))) == 10_000
    if compress is not bytes:
        written(tmp_path, compress(content)[:-20])
        with pytest.raises(UserError, match="cut off") as caught:
            results(JsonlReader(path))
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_damage_is_an_error(tmp_path, compress):
    good = compress(lines(*({"text": "あ" * n} for n in range(300))))
    middle = len(good) // 2
    path = written(
        tmp_path, good[:middle] + bytes(255 - byte for byte in good[middle : middle + 40]) + good[middle + 40 :]
    )
    with pytest.raises(UserError, match=r"data\.jsonl"):
        results(JsonlReader(path))


def test_all_keys_and_a_folder_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    given = {"text": "本文。\n続き。", "code": "ﾆｭｰｽ", "title": " 題 ", "author": "筆者", "date": 3}
    written(tmp_path, lines(given), "b.json")
    written(tmp_path / "sub", gzip.compress(lines({"text": "別", "title": None})), "c.ndjson.gz")
    written(tmp_path, lines({"text": "先"}), "a.JSONL")
    written(tmp_path, b"not read", "notes.txt")
    written(tmp_path, b"not read", "._a.jsonl")
    assert results(JsonlReader(tmp_path, code="雑")) == [
        Document("先", f"{tmp_path}/a.JSONL:1", "雑"),
        Document("本文。\n続き。", f"{tmp_path}/b.json:1", "ニュース", "題", "筆者"),
        Document("別", f"{tmp_path}/sub/c.ndjson.gz:1", "雑"),
    ]


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b'{"text": "a"', "not JSON", "column 13"),
        (b"text", "not JSON", "column 1"),
        (b'"text"', "not JSON", "str"),
        (b"3", "not JSON", "int"),
        (b'{"text": "\x82\xa0"}', "not JSON", "UTF-8 at byte 10"),
        (b'{"text": "\xed\xa0\x80"}', "not JSON", "UTF-8"),
        (b"\xff\xfe{\0", "not JSON", "UTF-8 at byte 0"),
        (b'{"a":' * 100_000, "not JSON", "recursion"),
        (b'{"text": ' + b"1" * 10_000 + b"}", "not JSON", "digits"),
        (b"{}", "no text", ""),
        (b'{"content": "a", "id": 1}', "no text", "content, id"),
        (b'{"text": null}', "no text", "text"),
        (rb'{"\ud800": "a"}', "no text", "\ufffd"),
        (b'{"text": ["a"]}', "not a string", "text is of type list"),
        (b'{"text": "a", "title": 7}', "not a string", "title is of type int"),
        (b'{"text": "a", "author": ["b"]}', "not a string", "author"),
        (b'{"text": "a", "code": 1}', "not a string", "code"),
        (b'{"text": "a", "code": "x y"}', "bad code name", "x y"),
        (b'{"text": "a", "code": ""}', "bad code name", ""),
        ('{"text": "　\\n"}'.encode(), "empty", ""),
    ],
)
def test_a_bad_line_is_dropped_with_its_place(tmp_path, line, reason, detail):
    path = written(tmp_path, lines({"text": "前"}) + b"\r\n" + line + b"\n" + lines({"text": "後"}))
    before, dropped, after = results(JsonlReader(path))
    assert isinstance(dropped, Dropped)
    assert (dropped.origin, dropped.reason) == (f"{path}:3", reason)
    assert detail in dropped.detail
    assert (before.text, after.text, after.origin) == ("前", "後", f"{path}:4")


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\ud800", "\ufffd"),
        (r"a\udc00b\ud83d", "a\ufffdb\ufffd"),
        (r"\ud83d\ude00", "😀"),
        (r"\udc00\ud800", "\ufffd\ufffd"),
        (r"\u0000か\u3099", "\0か\u3099"),
    ],
)
def test_lone_surrogates_never_come_through(tmp_path, escaped, text):
    path = written(tmp_path, f'{{"text": "{escaped}", "title": "{escaped}", "author": "{escaped}"}}'.encode())
    (document,) = results(JsonlReader(path))
    assert (document.text, document.title, document.author) == (text, text, text)
    document.text.encode()


def test_byte_order_mark_and_a_last_line_without_end(tmp_path):
    path = written(tmp_path, b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}')
    assert [document.text for document in results(JsonlReader(path))] == ["a", "b"]


def test_lines_are_numbered_across_groups_and_the_size_is_that_of_the_records(tmp_path):
    path = written(tmp_path, lines(*({"text": f"{n}" * 50} for n in range(5_000))))
    reader = JsonlReader(path)
    records = list(reader.records())
    assert 1 < len(records) < 20
    assert reader.size_bytes() == sum(len(record.data) for record in records)
    found = list(itertools.chain.from_iterable(map(reader.parse, records)))
    assert [document.origin for document in found] == [f"{path}:{n}" for n in range(1, 5_001)]
    assert JsonlReader(written(tmp_path, gzip.compress(b"{}"), "a.json.gz")).size_bytes() is None


def test_a_line_beyond_the_limit_is_dropped_and_the_rest_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LINE_LIMIT_BYTES", 1 << 20)
    path = written(tmp_path, lines({"text": "前"}, {"text": "a" * 5_000_000}, {"text": "後"}))
    reader = JsonlReader(path)
    assert max(len(record.data) for record in reader.records()) < 2_000_000
    before, dropped, after = results(reader)
    assert (dropped.origin, dropped.reason, dropped.detail) == (
        f"{path}:2",
        "not JSON",
        "the line is longer than 1 MiB",
    )
    assert (before.text, after.text, after.origin) == ("前", "後", f"{path}:3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b'[{"text": "a"}]', "JSON array"),
        (b'\xef\xbb\xbf [\n{"text": "a"}]', "JSON array"),
    ],
)
def test_what_holds_no_lines_is_named(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(UserError, match=message) as caught:
        results(JsonlReader(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["none.jsonl", ".", "a.jsonl/b"])
def test_missing_files(tmp_path, name):
    with pytest.raises(UserError, match=str(tmp_path)):
        results(JsonlReader(tmp_path / name))


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "data.jsonl.gz"
    block = lines(*({"text": "港の町には古い灯台がある。" * 30} for _ in range(1_000)))
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(18):  # 20 MB
            file.write(block)
    tracemalloc.start()
    try:
        size = sum(len(record.data) for record in JsonlReader(path).records())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 18 * len(block) > 19_000_000
    assert peak < 4_000_000


def test_zstd_bomb_is_read_in_small_steps(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = written(tmp_path, zstandard.compress(bytes(200 << 20)), "data.jsonl.zst")
    assert path.stat().st_size < 100_000
    with jsonl.open_stream(path) as stream:
        tracemalloc.start()
        try:
            while stream.read(1 << 20):
                pass
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 80 << 20


@pytest.mark.skipif(not WIKIPEDIA.exists(), reason="the shared corpora are not here")
def test_the_shared_wikipedia_paragraphs_are_all_documents():
    found = results(JsonlReader(WIKIPEDIA))
    assert len(found) == 9_713
    assert all(isinstance(document, Document) and document.title for document in found)
