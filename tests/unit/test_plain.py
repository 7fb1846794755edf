"""Plain text: every encoding that Japanese text comes in, and files that are no text."""

import zipfile

import pytest

from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.corpora.plain import PlainReader, decode
from hayakuchi.errors import UserError

TEXT = "港の町には古い灯台がある。\nカモメが鳴いて、朝が来た。"


def results(path):
    reader = PlainReader(path)
    return [result for record in reader.records() for result in reader.parse(record)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp932", "euc_jp", "iso2022_jp"])
@pytest.mark.parametrize("text", [TEXT, "ひらがなだけ", "カタカナ", "漢字", "ascii", "あ" * 200_000])
def test_encodings(encoding, text):
    assert decode(text.encode(encoding)) == text


def test_the_signs_that_windows_renames_are_the_same_from_every_encoding():
    for encoding in ("utf-8", "euc_jp", "iso2022_jp"):
        assert decode("十〜二十、−５℃".encode(encoding)) == "十〜二十、−５℃"
    assert decode("十～二十、－５℃".encode("cp932")) == "十〜二十、−５℃"


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_line_ends_and_title(tmp_path, end):
    path = tmp_path / "a.md"
    path.write_bytes(f"# 灯台 \n\n{TEXT}\n".replace("\n", end).encode())
    assert results(path) == [Document(TEXT, str(path), "plain", "灯台")]


def test_only_a_first_line_is_a_title():
    (document,) = PlainReader("unused", code="雑").parse(Record("a", "#付かない\n# 二行目\n　字下げ".encode()))
    assert document == Document("#付かない\n# 二行目\n　字下げ", "a", "雑")


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        (b"", "empty", ""),
        ("\ufeff \n　\r\n".encode(), "empty", ""),
        ("# 題だけ\n\n".encode(), "empty", ""),
        (TEXT.encode() + b"\xff\xff", "not text", f"byte {len(TEXT.encode())} is not utf-8"),
        (TEXT.encode()[:-1], "not text", "utf-8"),
        (TEXT.encode("cp932") + b"\x81", "not text", "cp932"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not text", ""),
        (b"a\0b", "not text", "character 1 is NUL"),
        (TEXT.encode("utf-16")[:-1], "not text", "utf-16"),
    ],
)
def test_what_is_no_text_is_dropped(data, reason, detail):
    (dropped,) = PlainReader("unused").parse(Record("a.txt", data))
    assert isinstance(dropped, Dropped)
    assert (dropped.origin, dropped.reason) == ("a.txt", reason)
    assert detail in dropped.detail


def test_a_folder_and_a_zip(tmp_path):
    (tmp_path / "b.txt").write_bytes("二".encode("cp932"))
    (tmp_path / "a.md").write_text("# 題\n一", encoding="utf-8")
    (tmp_path / "c.pdf").write_bytes(b"%PDF")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(tmp_path / "a.md", "sub/a.md")
        archive.write(tmp_path / "b.txt", "b.txt")
    assert {(d.text, d.title, d.origin) for d in results(tmp_path)} == {
        ("一", "題", f"{tmp_path}/a.md"),
        ("二", "", f"{tmp_path}/b.txt"),
    }
    zipped = results(tmp_path / "all.zip")
    assert {(d.text, d.title) for d in zipped} == {("一", "題"), ("二", "")}
    assert all(d.origin.startswith(f"{tmp_path}/all.zip!") for d in zipped)
    assert PlainReader(tmp_path).size_bytes() == len("# 題\n一".encode()) + 2


@pytest.mark.parametrize("name", ["none.txt", "."])
def test_nothing_there(tmp_path, name):
    with pytest.raises(UserError, match=str(tmp_path)):
        results(tmp_path / name)
