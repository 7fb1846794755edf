"""The Aozora reader keeps every sentence, leaves no notation, and survives any bytes in linear time."""

import json
import pickle
import re
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.corpora.aozora import AozoraReader, decode
from hayakuchi.corpora.aozora_notation import GETA, plain_text
from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.errors import MissingExtraError, UserError

pytest.importorskip("aozora")

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"

LEGEND = """-------------------------------------------------------
【テキスト中に現れる記号について】

《》：ルビ
（例）朝《あさ》

［＃］：入力者注　主に外字の説明や、傍点の位置の指定
-------------------------------------------------------
"""
FOOTER = """


底本：「試しの本」試し書房
　　　2001（平成13）年1月1日初版発行
入力：あ
校正：い
青空文庫作成ファイル：
"""
BODY = "　朝が来た。\n　夜が来た。"


def parse(text: str | bytes, **options: object) -> Document | Dropped:
    data = text if isinstance(text, bytes) else text.replace("\n", "\r\n").encode("cp932")
    [result] = AozoraReader(Path("unused"), **options).parse(Record("works.zip!a.txt", data))
    return result


def document(text: str | bytes, **options: object) -> Document:
    result = parse(text, **options)
    assert isinstance(result, Document), result
    return result


# Notation


@pytest.mark.parametrize(
    ("ruby", "expected"),
    [("drop", "朝と夜"), ("keep", "｜朝《あさ》と｜夜《よる》"), ("inline", "朝（あさ）と夜（よる）")],
)
def test_ruby_t5(ruby, expected):
    assert plain_text("｜朝《あさ》と夜《よる》", ruby) == expected


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("古い時計台《とけいだい》", "時計台"),
        ("人々《ひとびと》", "人々"),
        ("霞ヶ関《かすみがせき》", "霞ヶ関"),
        ("二〇〇《にひゃく》", "二〇〇"),
        ("青いさくら《桜》", "いさくら"),
        ("高いタワー《塔》", "タワー"),
        ("これはhotel《ホテル》", "hotel"),
        ("これは New York 《ニューヨーク》", "York "),
        ("ＡＢＣ《エービーシー》", "ＡＢＣ"),
        ("これはαβ《アルファベータ》", "αβ"),
        ("古い※［＃「弓＋椁のつくり」、第3水準1-84-22］田《なにだ》", "弴田"),
        ("夜空［＃「夜空」に傍点］《よぞら》", "夜空"),
        ("朝●《まる》", "●"),
    ],
)
def test_base_of_a_reading_without_its_mark(source, base):
    kept = plain_text(source, "keep")
    assert re.search(r"｜(.*)《", kept)[1] == base
    assert plain_text(kept, "keep") == kept
    assert plain_text(source).endswith(base)


@pytest.mark.parametrize("ruby", ["drop", "keep", "inline"])
@pytest.mark.parametrize(
    "source", ["《序》の話", "　《序》の話", "と言う。《序》は終わる", "「《序》」", "開いた《序", "《", "》｜"]
)
def test_quotation_marks_and_stray_marks_stay(source, ruby):
    assert plain_text(source, ruby) == source


def test_brackets_given_as_gaiji_are_no_ruby():
    source = "夜※［＃始め二重山括弧、1-1-52］序※［＃終わり二重山括弧、1-1-53］と朝《あさ》と※［＃縦線、1-1-35］"
    assert plain_text(source) == "夜《序》と朝と｜"
    assert plain_text(source, "inline") == "夜《序》と朝（あさ）と｜"


def test_gaiji_t6():
    text = plain_text("※［＃「弓＋椁のつくり」、第3水準1-84-22］")
    assert text == "弴"


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("「口＋耳」、第3水準1-14-94", "咡"),
        ("「さんずい＋（壥－土へん－厂）」、第4水準2-79-22", b"\x8f\xef\xb6".decode("euc_jis_2004")),
        ("「木＋吶のつくり」、U+67D5、11-11", "柕"),
        ("U+20B9F", "𠮟"),
        ("二の字点、1-2-22", "〻"),
        ("「※」は「歌記号」、第三水準1-3-28、107-16", "〽"),
        ("小書き片仮名ト、1-6-81", "ㇳ"),
        ("半濁点付き片仮名セ、1-5-92", "セ゚"),
        ("ローマ数字2、1-13-22", "Ⅱ"),
        ("「謎」", "謎"),
        ("「どこにも無い字」、12-3", GETA),
        ("「無い字」、第3水準1-99-99", GETA),
        ("無い字、U+110000", GETA),
        ("無い字、U+D800", GETA),
        ("制御、U+0007", GETA),
        ("「てへん＋長」、93-上段-4", GETA),  # the library has a private-use character here
    ],
)
def test_gaiji_by_code_or_description(note, expected):
    assert plain_text(f"あ※［＃{note}］い") == f"あ{expected}い"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("夜［＃「夜」に傍点］が来る", "夜が来る"),
        ("［＃５字下げ］［＃大見出し］一　朝［＃大見出し終わり］", "一　朝"),
        ("一\n［＃改ページ］\n二", "一\n二"),
        ("一\n　［＃ここから２字下げ］［＃ここから太字］\n　二\n［＃ここで太字終わり］\n三", "一\n　二\n三"),
        ("一行［＃改行］二行", "一行\n二行"),
        ("読［＃レ］書［＃（ヲ）］［＃二］", "読書"),
        ("雑記（２［＃「２」はローマ数字、1-13-22］）", "雑記（Ⅱ）"),
        ("珍しき木［＃「木＋吶のつくり」、第3水準1-85-54］が立つ", "珍しき木枘が立つ"),
        ("※［＃「口＋耳」、第3水準1-14-94］る［＃「※［＃「口＋耳」、第3水準1-14-94］る」に傍点］。", "咡る。"),
        ("一［＃「［＃「［＃「二」］」］」は深い］三", "一三"),
        ("一［＃閉じない注\n二", "一閉じない注\n二"),
        ("［＃割り注］小さな文［＃割り注終わり］", "小さな文"),
        ("※印と＃印と［角］", "※印と＃印と［角］"),
        ("すご／＼と、ほの／″＼と、ほの／゛＼と", "すご〳〵と、ほの〴〵と、ほの〴〵と"),
        ("〔e'tude〕と〔Verha:ltnis〕", "étudeとVerhältnis"),
        ("〔l'E'cole d'e'te', qu'il pre'sente〕", "l'École d'été, qu'il présente"),
        ("〔補った語〕と〔plain words〕", "〔補った語〕と〔plain words〕"),
        ("〔e'tude〕《エチュード》", "étude"),
        ("一\n\n\n二\n\n\n\n三\n　\n\n \n\n四", "一\n\n\n二\n\n三\n\n四"),
        ("　字下げの一段落。", "　字下げの一段落。"),
        ("葛󠄀と👨‍👩‍👧とか\u3099", "葛󠄀と👨‍👩‍👧とか\u3099"),
        ("", ""),
    ],
)
def test_notation(source, expected):
    assert plain_text(source) == expected


# The parts of a work


@pytest.mark.parametrize(
    ("header", "title", "author"),
    [
        ("試しの話\nある作者\n", "試しの話", "ある作者"),
        ("《序》の話\nある作者\n", "《序》の話", "ある作者"),
        ("橡《とち》の※［＃「口＋耳」、第3水準1-14-94］\nある作者\n", "橡の咡", "ある作者"),
        ("試しの話\n――ある副題――\nある作者\n", "試しの話　――ある副題――", "ある作者"),
        (
            "試しの話\nTHE TRIAL TALE\n元の作者　An Author\nある人訳\n",
            "試しの話　THE TRIAL TALE",
            "元の作者　An Author",
        ),
        ("試しの話\nある人訳\n", "試しの話", "ある人訳"),
        ("試しの話\n", "試しの話", ""),
    ],
)
@pytest.mark.parametrize(
    ("legend", "footer"),
    [
        (LEGEND, FOOTER),
        (LEGEND, ""),
        ("", FOOTER),
        ("", "\n\n\n底本:「試しの本」\n"),
        ("", "\n\n\n底本・初出：「雑誌」\n"),
        ("", "\n\n\n入力：あ\n"),
    ],
)
def test_header_legend_and_footer(header, title, author, legend, footer):
    found = document(f"{header}\n{legend}\n{BODY}\n{footer}")
    assert found == Document(BODY, "works.zip!a.txt", "aozora", title, author)


@pytest.mark.parametrize("first", ["　むかし、ある所に。\n　朝が来た。", "朝が来る\n鳥が鳴く", "題\n作者"])
def test_without_legend_and_footer_the_whole_text_is_the_body(first):
    text = f"{first}\n\n夜が来る\n星が出る"
    assert document(text) == Document(text, "works.zip!a.txt", "aozora")


def test_a_first_paragraph_is_no_header():
    indented = "　朝が来た。\n\n　夜が来た。"
    assert document(indented + FOOTER) == Document(indented, "works.zip!a.txt", "aozora")
    long_first_paragraph = "長" * 130 + "\n\n終わり。"
    assert document(long_first_paragraph + FOOTER).text == long_first_paragraph


def test_only_the_last_footer_line_ends_the_body():
    body = "　彼は書いた。\n底本：と書いて、また消した。\n　朝が来た。"
    assert document(f"題\n作者\n\n{body}{FOOTER}").text == body
    assert document(f"題\n作者\n\n　底本：は行の中にも立つ。底本：{FOOTER}").text == "　底本：は行の中にも立つ。底本："


def test_a_source_line_amid_a_long_text_is_no_footer():
    body = "　朝が来た。\n底本：家にあった本\n" + "　夜が来た。\n" * 500
    assert document(body).text == body.strip("\n")
    notes = "　※入力者の注。\n" * 500
    assert document(f"{BODY}\n\n底本：「試しの本」\n入力：あ\n{notes}").text == BODY


def test_dashed_lines_that_are_no_legend_stay():
    body = "一\n--------------------\n二\n--------------------\n三"
    assert document(f"題\n作者\n\n{body}{FOOTER}").text == body


def test_what_follows_the_end_of_the_body_is_no_body():
    assert document(f"題\n作者\n\n{BODY}\n［＃本文終わり］\n　奥付。{FOOTER}").text == BODY


@pytest.mark.parametrize(
    "notice",
    [
        "この作品は、クリエイティブ・コモンズ「表示 2.1 日本」でライセンスされています。",
        "利用条件は https://creativecommons.org/licenses/by-nd/2.1/jp/ を見よ。",
        "※この作品は著作権が存続しています。",
    ],
)
@pytest.mark.parametrize("footer", [FOOTER, "\n\n\n"])
def test_works_in_copyright_are_left_out_unless_asked_for(notice, footer):
    text = f"題\n作者\n\n{BODY}{footer}{notice}\n"
    dropped = parse(text)
    assert isinstance(dropped, Dropped)
    assert (dropped.origin, dropped.reason) == ("works.zip!a.txt", "in copyright")
    assert BODY in document(text, in_copyright=True).text


def test_an_essay_about_licences_is_kept():
    body = "　クリエイティブ・コモンズの話をしよう。\n" + "　長い話である。\n" * 500
    assert document(f"題\n作者\n\n{body}{FOOTER}").text == body.strip("\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "　\n",
        f"題\n作者\n\n{FOOTER}",
        f"題\n作者\n\n{LEGEND}{FOOTER}",
        f"題\n作者\n\n［＃改ページ］\n{FOOTER}",
    ],
)
def test_a_work_without_text_is_dropped(text):
    dropped = parse(text)
    assert isinstance(dropped, Dropped)
    assert dropped.reason == "empty"


# Bytes


@pytest.mark.parametrize("encoding", ["cp932", "utf-8", "utf-8-sig"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(encoding, line_end):
    text = f"題①\n作者㈱\n\n{BODY}ﾊﾟ―＼\n{FOOTER}"
    found = document(text.replace("\n", line_end).encode(encoding))
    assert found == Document(BODY + "ﾊﾟ―＼", "works.zip!a.txt", "aozora", "題①", "作者㈱")


@pytest.mark.parametrize(
    ("data", "at"),
    [
        ("題\n作者\n\n朝が来た。".encode("cp932") + b"\x81", 19),
        ("朝が来た。夜が来た。".encode()[:-1], 27),
        (b"\xef\xbb\xbf" + "朝".encode("cp932"), 3),
        ("朝が来た。".encode("utf-16"), 0),
        ("朝が".encode() + b"\0" + "来た".encode(), 6),
        ("朝が".encode("cp932") + b"\0", 4),
        ("朝が".encode("cp932") + b"\xa0", 4),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 8),
    ],
)
def test_bytes_that_are_no_text_are_dropped_with_the_place(data, at):
    dropped = parse(data)
    assert isinstance(dropped, Dropped)
    assert dropped.reason == "undecodable"
    assert f"byte {at} " in dropped.detail


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_one_result_and_no_lone_surrogate(data):
    [result] = AozoraReader(Path("unused"), ruby="keep").parse(Record("a", data))
    if isinstance(result, Document):
        result.text.encode("utf-8")


NOTE_PIECES = (
    "［＃",
    "※［＃",
    "］",
    "、第3水準1-84-22］",
    "U+5F34",
    "はローマ数字、1-13-22］",
    "［＃改行］",
    "に傍点］",
)
OTHER_PIECES = ("〔e'", "について", "\n底本：", "\n----------\n")
LETTERS = "《》｜［］〔〕※＃／＼″「」、。\n　朝夜あアaé'12-Ⅱ𠮟\0\u3099\ufdd0\ud800"
PIECES = st.sampled_from([*LETTERS, *NOTE_PIECES, *OTHER_PIECES])


@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from(["drop", "keep", "inline"]))
@settings(max_examples=500, deadline=None)
def test_no_notation_is_left_of_any_text(text, ruby):
    data = text.encode("utf-8", "replace")
    [result] = AozoraReader(Path("unused"), ruby=ruby).parse(Record("a", data))
    if isinstance(result, Document):
        assert not re.search("［＃|／＼|／″＼|[\ufdd0-\ufddb]", result.text + result.title + result.author)


HOSTILE = {
    "one line": "長" * 200_000,
    "one run before a reading": "長" * 200_000 + "《なが》",
    "open notes": "［＃" * 100_000,
    "nested notes": "［＃" * 60_000 + "］" * 60_000,
    "nested gaiji": "※［＃「" * 50_000 + "」］" * 50_000,
    "open readings": "《" * 200_000,
    "nested readings": "｜《" * 60_000 + "》" * 60_000,
    "readings": "《あ》" * 60_000,
    "marks": "｜" * 200_000,
    "words and marks": "あ｜い" * 60_000,
    "accents": "〔e'" * 60_000 + "〕",
    "long accent": "〔" + "e'" * 100_000 + "〕",
    "spaces": "　" * 200_000 + "\n" + " " * 200_000,
    "blank lines": "\n" * 200_000 + "あ" + " \n" * 100_000,
    "note lines": "［＃改ページ］" * 30_000 + "あ",
    "dashes": ("-" * 10_000 + "x\n") * 20,
    "dashed lines": "----------\n" * 20_000,
    "footers": "\n底本：" * 50_000,
    "numerals": "２［＃「２」はローマ数字、1-13-22］" * 10_000 + "あ" * 100_000,
}


@pytest.mark.parametrize("ruby", ["drop", "keep", "inline"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_take_linear_time(name, ruby):
    data = ("題\n作者\n\n　" + HOSTILE[name]).encode()
    begin = time.process_time()
    [result] = AozoraReader(Path("unused"), ruby=ruby).parse(Record("a", data))
    assert time.process_time() - begin < 5  # a quadratic pattern takes minutes
    assert "［＃" not in getattr(result, "text", "")


def test_a_long_line_is_kept_whole():
    assert document("題\n作者\n\n" + "長" * 200_000 + FOOTER).text == "長" * 200_000


# Sources


def test_records_of_a_folder_of_zips(tmp_path):
    work = f"題\n作者\n\n{BODY}{FOOTER}".encode("cp932")
    with zipfile.ZipFile(tmp_path / "1_ruby.zip", "w") as archive:
        archive.writestr("work.txt", work)
        archive.writestr("fig1.png", b"\x89PNG")
    (tmp_path / "2.txt").write_bytes(work)
    reader = pickle.loads(pickle.dumps(AozoraReader(tmp_path, code="novel")))
    records = list(reader.records())
    assert [record.origin for record in records] == [f"{tmp_path}/1_ruby.zip!work.txt", f"{tmp_path}/2.txt"]
    assert reader.size_bytes() == sum(len(record.data) for record in records) == 2 * len(work)
    assert reader.parse(records[0]) == [Document(BODY, records[0].origin, "novel", "題", "作者")]


def test_records_of_nothing(tmp_path):
    with pytest.raises(UserError, match="txt"):
        list(AozoraReader(tmp_path).records())


def test_the_missing_library_is_named_before_anything_is_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"text")
    monkeypatch.setitem(sys.modules, "aozora", None)
    with pytest.raises(MissingExtraError, match=r"hayakuchi\[corpora\]"):
        list(AozoraReader(tmp_path).records())


def test_decode_reads_what_only_cp932_has():
    assert decode("①㈱纊ﾊﾟ".encode("cp932")) == "①㈱纊ﾊﾟ"


def test_a_gaiji_described_with_a_minus_sign_is_found():
    assert document(f"題\n作者\n\nあ※［＃「匈／（胃－田）」］い{FOOTER}").text == "あ胷い"


SAMPLE = CORPORA / "aozora_raw_sample.tar.xz"


@pytest.mark.skipif(not SAMPLE.exists(), reason="the shared corpora are not here")
def test_every_work_of_a_sample_gives_a_clean_document():
    reader = AozoraReader(SAMPLE)
    for number, record in enumerate(reader.records()):
        if number == 200:
            break
        [found] = reader.parse(record)
        assert isinstance(found, Document)
        assert found.title
        assert not re.search("［＃|／＼|／″＼|^底本：|入力：|-{10}", found.text, re.MULTILINE)
        assert not re.search("[々〆一-鿿]《[ぁ-ゖ]{1,8}》", found.text)


VECTORS = CORPORA / "aozora_notation_vectors.tar.xz"
# Where the reference HTML repeats a missing referent, composes letters with dots, or presents what we leave as it is.
NOT_TEXT = re.compile(
    r"_no_referent$|^accent_|^(angle_quote|editor_note|empty_ruby_reading|fraction_forward|pua_collision|sashie_caption"
    r"|unresolved_gaiji)$"
)
HIDDEN = (
    r'<rt.*?</rt>|<rp>.*?</rp>|<span class="aozora-directive" hidden>.*?</span>'
    r'|<sup class="aozora-(kaeriten|ruby-note)">.*?</sup>|<[^>]*>'
)


@pytest.mark.skipif(not VECTORS.exists(), reason="the shared corpora are not here")
def test_conformance_vectors_read_as_their_html():
    compared = 0
    with tarfile.open(VECTORS) as archive:
        for member in archive:
            if not member.name.endswith("vector.json"):
                continue
            vector = json.load(archive.extractfile(member))
            text = plain_text(vector["source"])
            assert "［＃" not in text, vector["name"]
            html = vector["expected"].get("html")
            if html and not NOT_TEXT.search(vector["name"]):
                compared += 1
                assert "".join(text.split()) == "".join(re.sub(HIDDEN, "", html).split()), vector["name"]
    assert compared > 80
