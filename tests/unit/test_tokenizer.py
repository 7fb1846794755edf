import itertools
import lzma
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.errors import UserError
from hayakuchi.text.codes import CODE_SLOTS
from hayakuchi.text.normalise import POLICIES, normalise
from hayakuchi.text.streaming import StreamDecoder
from hayakuchi.text.tokenizer import (
    EOS_ID,
    FIRST_BYTE_ID,
    FIRST_CODE_ID,
    FIRST_LEARNT_ID,
    HARD_TEXTS,
    PAD_ID,
    UNKNOWN_ID,
    Tokenizer,
    check_round_trip,
    train_tokenizer,
)
from hayakuchi.text.training_lines import LINE_LIMIT_BYTES, sample_lines

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"

WHO = ["祖母", "隣の子ども", "若い大工", "図書館の人", "駅長さん", "猫", "先生", "わたしたち"]
WHERE = ["雨の庭で", "朝の市場で", "古い橋の上で", "台所の隅で", "海の見える丘で", "夜の電車で"]
WHAT = [
    "手紙を読んでいた。",
    "静かに笑った。",
    "鍵を落とした！",
    "「もう帰ろう」と言った。",
    "林檎を３つ買った。",
    "まだ起きている？",
]
SENTENCES = [f"{who}は{where}{what}" for who, where, what in itertools.product(WHO, WHERE, WHAT)]
HELDOUT = ["猫は古い橋の上で静かに笑った。\n　わたしたちは、まだ起きている。", "珍しい鼈甲の櫛…①", "No.7 is  here.\t"]

EMOJI = ["𠮟", "葛󠄀", "👨‍👩‍👧", "\n"]
ANY_TEXT = st.lists(
    st.one_of(
        st.text(st.characters(), max_size=6),
        st.sampled_from(
            [*SENTENCES[:4], *EMOJI, *HARD_TEXTS, "▁", " ", "　", "か\u3099", "\ud842", "<0xE3>", "\0", "９"]
        ),
    ),
    max_size=10,
).map("".join)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    return path, train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=None)


@pytest.fixture(scope="session")
def tokenizer(trained):
    return Tokenizer.load(trained[0])


def stream(tokenizer, ids):
    decoder = StreamDecoder(tokenizer)
    return [*(decoder.push(index) for index in ids), decoder.flush()]


@settings(deadline=None, max_examples=300)
@given(text=ANY_TEXT, policy=st.sampled_from(POLICIES))
def test_every_normalised_text_comes_back(tokenizer, text, policy):
    text = normalise(text, policy)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "".join(stream(tokenizer, ids)) == text
    assert not np.any(ids < FIRST_CODE_ID + CODE_SLOTS)  # no text encodes to a special id


@pytest.mark.parametrize(
    "text", ["　a  b\n…㈱㍻①ﾊﾟ\t終", *EMOJI, *HARD_TEXTS, "0" * 50, "あ" * 200_000, "▁" * 3, "猫▁ は"]
)
def test_hard_texts_come_back_byte_for_byte(tokenizer, text):
    """T1, T3."""
    assert tokenizer.decode(tokenizer.encode(text)).encode() == text.encode()


@pytest.mark.parametrize("text", [*EMOJI, "𠮟られた👨‍👩‍👧と葛󠄀城へ…①\n", "鼈甲"])
def test_a_stream_never_shows_a_broken_character(tokenizer, text):
    """T3."""
    shown = stream(tokenizer, tokenizer.encode(text))
    assert "\ufffd" not in "".join(shown)
    assert "".join(shown) == text
    for step in itertools.accumulate(shown):
        assert text.startswith(step)


def test_broken_bytes_of_a_model_are_shown_once_known(tokenizer):
    def byte(value):
        return FIRST_BYTE_ID + value

    newline = int(tokenizer.encode("\n")[0])
    assert stream(tokenizer, [byte(0xE3), byte(0x81), newline]) == ["", "", "\ufffd\n", ""]
    assert stream(tokenizer, [byte(0xFF), byte(0xE3), byte(0x81)]) == ["\ufffd", "", "", "\ufffd"]
    assert stream(tokenizer, [byte(0xE3), tokenizer.code_id(5), byte(0x81), byte(0x82)])[-2:] == ["あ", ""]


@settings(deadline=None)
@given(data=st.data())
def test_streaming_any_ids_equals_decoding_them(tokenizer, data):
    special_or_byte = st.integers(0, FIRST_LEARNT_ID - 1)
    ids = data.draw(st.lists(special_or_byte | st.integers(0, tokenizer.vocabulary_size - 1)))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == tokenizer.decode(np.array(ids, np.uint16))


def test_ids_are_laid_out_as_documented(tokenizer):
    pieces = tokenizer.piece_scores()
    assert [piece.text for piece in pieces] == tokenizer.pieces
    assert len(pieces) == tokenizer.vocabulary_size
    assert [pieces[i].text for i in (PAD_ID, UNKNOWN_ID, EOS_ID)] == ["<pad>", "<unk>", "<eos>"]
    assert [pieces[tokenizer.code_id(slot)].text for slot in (0, 63)] == ["<code:0>", "<code:63>"]
    assert [pieces[i].text for i in (67, 68, 69, 324)] == ["\n", "▁", "<0x00>", "<0xFF>"]
    kinds = [piece.kind for piece in pieces]
    assert kinds[:3] == ["control", "unknown", "control"]
    assert kinds[3:67] == ["control"] * CODE_SLOTS
    assert kinds[67:69] == ["user-defined"] * 2
    assert kinds[69:325] == ["byte"] * 256
    assert set(kinds[325:]) == {"normal"}
    assert all(len(piece.text) <= 8 for piece in pieces[325:])
    assert tokenizer.decode([PAD_ID, UNKNOWN_ID, EOS_ID, tokenizer.code_id(1)]) == ""


def test_text_that_looks_special_is_text(tokenizer):
    for piece in ("<eos>", "<code:1>", "<0xE3>", "<unk>"):
        assert tokenizer.decode(tokenizer.encode(piece)) == piece
    assert tokenizer.encode("12")[0] == tokenizer.encode("1")[0]  # digits stand alone


def test_a_batch_is_its_texts(tokenizer):
    texts = [*SENTENCES[:20], "", "▁あ▁", *EMOJI]
    for threads in (1, 2):
        for text, ids in zip(texts, tokenizer.encode_batch(texts, threads), strict=True):
            np.testing.assert_array_equal(ids, tokenizer.encode(text))
    assert tokenizer.encode_batch([]) == []


def test_a_long_text_has_the_ids_that_it_has_in_one_piece(tokenizer):
    lines = "\n".join(SENTENCES) * 200 + "あ" * 1_100_000 + "\n\n終"
    assert lines.count("\n") > 50_000
    assert len(lines) > 2_000_000
    whole = tokenizer._processor.encode(lines, return_type="numpy")
    np.testing.assert_array_equal(tokenizer.encode(lines), whole)
    assert tokenizer.decode(whole) == lines


def test_reloading_gives_the_same_ids(trained, tokenizer, tmp_path):
    copy = tmp_path / "写し.model"
    copy.write_bytes(trained[0].read_bytes())
    again = Tokenizer.load(copy)
    assert again.sha256 == tokenizer.sha256
    for other in (again, pickle.loads(pickle.dumps(tokenizer))):  # as worker processes receive it
        assert [list(other.encode(text)) for text in HARD_TEXTS] == [
            list(tokenizer.encode(text)) for text in HARD_TEXTS
        ]
    assert tokenizer.decode(tokenizer.encode("ABC")) == "ABC"  # no hidden lower-casing


def test_the_report(trained, tokenizer):
    report = trained[1]
    tokens = sum(len(tokenizer.encode(text)) for text in HELDOUT)
    assert report.tokens == tokens
    assert report.characters == sum(map(len, HELDOUT))
    assert report.characters_per_token == pytest.approx(report.characters / tokens)
    assert 0 < report.byte_fallback_rate < 1
    assert report.vocabulary_size == tokenizer.vocabulary_size
    assert report.split_lines == report.skipped_lines == 0
    assert tokenizer.encode(SENTENCES[0]).size < 0.7 * len(SENTENCES[0])  # words were learnt


def test_training_is_deterministic_and_streams(trained, tmp_path):
    train_tokenizer(iter(SENTENCES), HELDOUT, tmp_path / "b", vocabulary_size=None)
    assert (tmp_path / "b").read_bytes() == trained[0].read_bytes()


def test_a_line_of_1500_kanji_is_learnt(tmp_path):
    """T2."""
    # Only this line holds 麒麟鳳凰 (often) and 鱻 (once); SentencePiece would pass over a line this long.
    line = "".join(chr(0x4E00 + i * 7 % 90) + ("麒麟鳳凰" if i % 5 == 0 else "") for i in range(900))[:1_499] + "鱻"
    report = train_tokenizer([*SENTENCES, line], [line], tmp_path / "m", vocabulary_size=None)
    tokenizer = Tokenizer.load(tmp_path / "m")
    assert len(line) == 1_500
    assert (report.split_lines, report.skipped_lines) == (1, 0)
    assert "麒麟鳳凰" in tokenizer.pieces
    assert tokenizer.decode(tokenizer.encode(line)) == line


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8")) | st.sampled_from(["か。" * 3_000, "漢" * 9_000, "𠮟" * 5_000])))
def test_splitting_loses_nothing(texts):
    corpus = sample_lines(texts, 1 << 30)
    assert all(0 < len(line) <= LINE_LIMIT_BYTES for line in corpus.lines)
    kept = "".join(texts).translate(dict.fromkeys(map(ord, "\n▁▅")))
    assert b"".join(corpus.lines).decode() == kept
    assert corpus.size == len(kept.encode())
    assert corpus.skipped == 0


def test_long_lines_are_split_at_sentence_ends():
    lines = sample_lines(["今日は晴れた。明日も晴れるだろうか？" * 200], 1 << 30).lines
    assert len(lines) > 2
    assert all(line.decode()[-1] in "。？" for line in lines)


def test_a_large_corpus_is_sampled():
    corpus = sample_lines(iter([f"{i:09}" for i in range(10_000)]), 20_000)
    assert 10_000 < sum(map(len, corpus.lines)) <= 20_000
    assert corpus.skipped + len(corpus.lines) == 10_000
    numbers = [int(line) for line in corpus.lines]
    assert numbers == sorted(set(numbers))
    assert 4_000 < np.mean(numbers) < 6_000
    assert corpus == sample_lines([f"{i:09}" for i in range(10_000)], 20_000)


def test_vocabulary_that_the_texts_do_not_support(tmp_path):
    path = tmp_path / "m"
    with pytest.raises(
        UserError, match=r"--vocab-size 30000 is more than .* the largest that works is (\d+)"
    ) as caught:
        train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=30_000)
    largest = int(str(caught.value).split()[-1])
    with pytest.raises(UserError, match="the largest that works"):
        train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=largest + 1)
    assert not path.exists()
    assert train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=largest).vocabulary_size == largest


def test_vocabulary_too_small(tmp_path):
    path = tmp_path / "m"
    for size in (-1, 0, FIRST_LEARNT_ID):
        with pytest.raises(UserError, match=f"--vocab-size {size}: 325 ids are taken already"):
            train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=size)
    with pytest.raises(UserError, match=r"too small for the characters of the texts: take (\d+) or more") as caught:
        train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=330)
    smallest = int(str(caught.value).split()[-3])
    assert train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=smallest + 1).vocabulary_size == smallest + 1
    with pytest.raises(UserError, match="--vocab-size 1000000000000"):
        train_tokenizer(SENTENCES, HELDOUT, path, vocabulary_size=10**12)


@pytest.mark.parametrize("texts", [[], ["", "\n\n"], ["▅"], [" "], ["\0"]])
def test_nothing_to_train_on(tmp_path, texts):
    with pytest.raises(UserError) as caught:
        train_tokenizer(texts, [], tmp_path / "m", vocabulary_size=None)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("texts", [["あ"], ["a b c"], ["1"], ["あ" * 200_000], ["\ud800漢"], ["▅を▁含む\t行⁇"]])
def test_tiny_corpora_work(tmp_path, texts, capfd):
    report = train_tokenizer(texts, [], tmp_path / "m", vocabulary_size=None)
    assert report.vocabulary_size > FIRST_LEARNT_ID
    assert capfd.readouterr() == ("", "")


def test_the_gate_shows_what_does_not_come_back(tokenizer, tmp_path, monkeypatch):
    check_round_trip(tokenizer, HELDOUT)
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: "猫は走った")
    with pytest.raises(UserError, match=r"gives back '猫は走った' for '猫は寝ている' \(character 2 of a text\)"):
        check_round_trip(tokenizer, ["猫は寝ている"])
    with pytest.raises(UserError, match="gives back"):
        train_tokenizer(SENTENCES, HELDOUT, tmp_path / "m", vocabulary_size=None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("decoded", ["", "a" * 100_000, "あ" * 100_001])
def test_the_message_of_the_gate_is_short(tokenizer, monkeypatch, decoded):
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: decoded)
    with pytest.raises(UserError) as caught:
        check_round_trip(tokenizer, ["あ" * 100_000])
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb▁"])
def test_a_lone_surrogate_is_refused_by_name(tokenizer, text):
    with pytest.raises(UserError, match="lone surrogate, U\\+D"):
        tokenizer.encode(text)
    with pytest.raises(UserError, match="lone surrogate"):
        check_round_trip(tokenizer, [text])


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, "ただの文".encode(), b"\x0a\xff\xff\xff\xff\x0f", None])
def test_files_that_are_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model: "):
        Tokenizer.load(path)


def test_a_foreign_or_damaged_model_is_refused(trained, tmp_path):
    path = tmp_path / "tokenizer.model"
    model = trained[0].read_bytes()
    path.write_bytes(model.replace(b"<code:7>", b"<kode:7>"))
    with pytest.raises(UserError, match="that Hayakuchi did not train"):
        Tokenizer.load(path)
    path.write_bytes(model[: len(model) // 2])
    with pytest.raises(UserError):
        Tokenizer.load(path)


def test_a_path_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match="cannot write the tokenizer"):
        train_tokenizer(SENTENCES, HELDOUT, tmp_path / "none" / "m", vocabulary_size=None)


@pytest.mark.skipif(not (CORPORA / "rohan4600.txt").exists(), reason="shared corpora are not here")
def test_real_text_trains_in_seconds_and_comes_back(tmp_path):
    lines = (CORPORA / "rohan4600.txt").read_text(encoding="utf-8").splitlines()[:1_500]
    with lzma.open(CORPORA / "wikipedia_paragraphs.jsonl.xz", "rt", encoding="utf-8") as file:
        heldout = [normalise(line) for line in itertools.islice(file, 200)]
    start = time.process_time()
    train_tokenizer(map(normalise, lines), heldout, tmp_path / "m", vocabulary_size=None)
    assert time.process_time() - start < 10
