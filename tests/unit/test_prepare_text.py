import hashlib
import itertools
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hayakuchi.corpora.aozora import AozoraReader
from hayakuchi.corpora.document import Document, Dropped, Reader, Record
from hayakuchi.corpora.jsonl import JsonlReader
from hayakuchi.data import prepare_text as module
from hayakuchi.data.prepare_text import PrepareOptions, prepare_text, summary
from hayakuchi.data.shards import SPLITS, DatasetInfo, open_split
from hayakuchi.data.split import text_hash, threshold
from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.owner import OWNER_FILE
from hayakuchi.text.normalise import normalise
from hayakuchi.text.tokenizer import EOS_ID, Tokenizer, train_tokenizer

SUBJECTS = ["春の川", "古い時計", "山の宿", "小さな舟", "町の灯", "夜汽車", "白い犬", "北の港"]
VERBS = ["静かに揺れている", "遠くへ消えた", "誰かを待っていた", "雨に濡れて光った", "朝まで歌った"]
HOSTILE = [
    "▁半角 と　全角の空白\t㈱①ﾊﾟ…終",
    "か\u3099𠮟葛󠄀👨‍👩‍👧",
    "長い" * 100_000,
    "<pad><code:3>&lt;",
    "\u0301" * 5_000,
]


def text(number: int) -> str:
    """A paragraph like no other."""
    picks = hashlib.sha256(str(number).encode()).digest()
    sentences = [
        f"{SUBJECTS[a % 8]}は{VERBS[b % 5]}、と{number}番の手帳に{a * b}回目として書いてある。"
        for a, b in itertools.pairwise(picks)
    ]
    return "".join(sentences[: 2 + picks[0] % 6])


@dataclass(frozen=True)
class FakeReader:
    """Gives the documents it was made with; works in one process only."""

    documents: tuple[Document | Dropped | Exception, ...]
    code: str = "fake"
    path: Path = field(default=Path("somewhere"))

    def records(self) -> Iterator[Record]:
        for number, document in enumerate(self.documents):
            yield Record(f"somewhere:{number}", b"x" * (len(document.text) if isinstance(document, Document) else 1))

    def size_bytes(self) -> int | None:
        return None

    def parse(self, record: Record) -> list[Document | Dropped]:
        found = self.documents[int(record.origin.rpartition(":")[2])]
        if isinstance(found, Exception):
            raise found
        return [found]


def fake(*texts: str, code: str = "fake") -> FakeReader:
    return FakeReader(tuple(Document(t, f"somewhere:{n}", code) for n, t in enumerate(texts)))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer([text(n) for n in range(300)], [], path, vocabulary_size=400)
    return path


def prepare(out: Path, *sources: Reader, **options: Any) -> dict[str, Any]:
    return prepare_text(out, sources, PrepareOptions(**{"workers": 1, **options}))


def read_back(out: Path) -> dict[str, list[tuple[str, str]]]:
    """(code, text) of every document, by split."""
    tokenizer = Tokenizer.load(out / "tokenizer.model")
    info = DatasetInfo.load(out / "dataset.json")
    found: dict[str, list[tuple[str, str]]] = {}
    for split in SPLITS:
        shards = open_split(out, split)
        found[split] = []
        for number, record in enumerate(shards.documents):
            ids = shards.tokens(number)
            assert ids[-1] == EOS_ID
            decoded = tokenizer.decode(ids[:-1])
            assert (record["characters"], record["bytes"]) == (len(decoded), len(decoded.encode()))
            found[split].append((info.codes.name(int(record["code"])), decoded))
    return found


def test_every_document_is_there_once_with_its_code_and_in_its_split(tmp_path: Path) -> None:
    texts = [text(n) for n in range(300)]
    report = prepare(
        tmp_path / "out", fake(*texts[:200], code="物語"), fake(*texts[200:], code="随筆"), heldout_fraction=0.1
    )
    found = read_back(tmp_path / "out")
    heldout = {t for t in texts if text_hash(t).split < threshold(0.1)}
    expected = [("物語" if n < 200 else "随筆", t) for n, t in enumerate(texts)]
    assert found["train"] == [pair for pair in expected if pair[1] not in heldout]
    assert found["heldout"] == [pair for pair in expected if pair[1] in heldout]

    info = DatasetInfo.load(tmp_path / "out" / "dataset.json")
    assert info.tokenizer_sha256 == hashlib.sha256((tmp_path / "out" / "tokenizer.model").read_bytes()).hexdigest()
    for split in SPLITS:
        for code, counts in info.counts[split].items():
            own = [t for name, t in found[split] if name == code]
            assert counts.documents == len(own)
            assert counts.characters == sum(map(len, own))
            assert counts.bytes == sum(len(t.encode()) for t in own)
    assert report == json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["documents_in"] == report["documents_out"] == 300
    assert sum(counts["tokens"] for by_code in report["splits"].values() for counts in by_code.values()) == sum(
        int(open_split(tmp_path / "out", split).documents["tokens"].sum()) for split in SPLITS
    )
    assert report["tokenizer_training"]["skipped_lines"] == 0
    assert 1 < report["characters_per_token"] < 10
    assert 0 <= report["byte_fallback_rate"] < 0.1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dataset.json", "heldout", "report.json", "tokenizer.model", "train"
    ]  # fmt: skip


def test_the_same_bytes_whatever_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TASK_BYTES", 2_000)
    source = tmp_path / "source.jsonl"
    rows = [{"text": text(n % 250), "code": "ab"[n % 2]} for n in range(300)]
    source.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    names = {}
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        report = prepare(out, JsonlReader(source), workers=workers)
        names[workers] = {
            str(path.relative_to(out)): path.read_bytes()
            for path in out.rglob("*")
            if path.is_file() and path.name != "report.json"
        }
        assert report["dropped"] == {"duplicate": 50}
    assert names[1] == names[2]


def test_hostile_text_comes_back(tmp_path: Path, tokenizer: Path) -> None:
    texts = [*HOSTILE, "\ud842壊れた", "\0印\ufeff", "一\r\n二\x85三"]
    prepare(tmp_path / "out", fake(*texts), tokenizer=tokenizer, deduplicate="none")
    assert Counter(t for found in read_back(tmp_path / "out").values() for _, t in found) == Counter(
        normalise(t) for t in texts
    )


def test_duplicates_are_dropped_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    long = "".join(text(n) for n in range(8))
    texts = [long, text(20), long, long.replace("春", "秋"), text(21)]
    kept = {
        mode: prepare(tmp_path / mode, fake(*texts), tokenizer=tokenizer, deduplicate=mode)
        for mode in ("none", "exact", "near")
    }
    assert {mode: report["dropped"] for mode, report in kept.items()} == {
        "none": {},
        "exact": {"duplicate": 1},
        "near": {"duplicate": 1, "near-duplicate": 1},
    }
    (source,) = kept["exact"]["sources"]
    assert source["dropped"]["duplicate"]["examples"] == [{"origin": "somewhere:2", "detail": ""}]


def test_subcodes_are_lines_of_text_that_change_no_split(tmp_path: Path, tokenizer: Path) -> None:
    documents = [Document(text(n), f"o:{n}", "a", f"第{n}\n章 ﾊﾙ", "" if n % 2 else "森 川") for n in range(60)]
    reader = FakeReader((*documents, Document(text(99), "o:99", "a")))
    prepare(tmp_path / "plain", reader, tokenizer=tokenizer, heldout_fraction=0.2)
    prepare(tmp_path / "sub", reader, tokenizer=tokenizer, heldout_fraction=0.2, subcodes=("author", "title"))
    plain, sub = read_back(tmp_path / "plain"), read_back(tmp_path / "sub")
    assert DatasetInfo.load(tmp_path / "sub" / "dataset.json").subcodes == ("author", "title")
    for split in SPLITS:
        assert [t for _, t in plain[split]] == [t.rpartition("\n")[2] for _, t in sub[split]]
    found = {t for pairs in sub.values() for _, t in pairs}
    assert f"題名：第0 章 ハル\n作者：森 川\n\n{text(0)}" in found
    assert f"題名：第1 章 ハル\n\n{text(1)}" in found
    assert text(99) in found


def test_why_documents_were_dropped(tmp_path: Path, tokenizer: Path) -> None:
    dropped = [Dropped(f"o:{n}", "redirect", f"to {n}") for n in range(7)]
    odd = [
        Document(" 　\n", "o:8", "a"),
        Document("短い", "o:9", "a"),
        Document(text(1), "o:10", "a b"),
        KeyError("頁"),
    ]
    reader = FakeReader((*dropped, *odd, Document(text(2), "o:11", "a")))
    report = prepare(tmp_path / "out", reader, tokenizer=tokenizer, minimum_characters=10)
    assert report["dropped"] == {"redirect": 7, "empty": 1, "too short": 1, "bad code name": 1, "reader failed": 1}
    assert (report["documents_in"], report["documents_out"]) == (12, 1)
    (source,) = report["sources"]
    assert source["source"] == "somewhere"
    assert source["dropped"]["redirect"]["examples"] == [{"origin": f"o:{n}", "detail": f"to {n}"} for n in range(5)]
    assert "redirect: 7" in summary(report)
    assert "頁" in source["dropped"]["reader failed"]["examples"][0]["detail"]


@pytest.mark.parametrize("texts", [[text(1)], [text(1), text(2)], [text(1), text(1)]])
def test_a_tiny_corpus_has_training_text_and_where_possible_heldout_text(
    tmp_path: Path, tokenizer: Path, texts: list[str]
) -> None:
    prepare(tmp_path / "out", fake(*texts), tokenizer=tokenizer, deduplicate="none")
    found = read_back(tmp_path / "out")
    assert len(found["heldout"]) == len(set(texts)) - 1
    assert len(found["train"]) == len(texts) - len(found["heldout"])


def test_a_given_tokenizer_is_used(tmp_path: Path, tokenizer: Path) -> None:
    report = prepare(tmp_path / "out", fake(text(1), text(2)), tokenizer=tokenizer)
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == tokenizer.read_bytes()
    assert report["vocabulary_size"] == 400
    assert report["tokenizer_training"] is None


def test_a_second_run_in_the_same_place_uses_its_own_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    prepare(tmp_path / "out", fake(text(1)), tokenizer=tokenizer)
    shutil.rmtree(tmp_path / "out")
    prepare(tmp_path / "out", fake(*(text(n) for n in range(40))))
    assert ("fake", text(1)) in itertools.chain(*read_back(tmp_path / "out").values())


def refused(out: Path, match: str, *sources: Reader, **options: Any) -> None:
    """Preparing fails with one line and leaves the surroundings as they were."""
    before = {path: path.read_bytes() for path in out.parent.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=match) as error:
        prepare(out, *sources, **options)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in out.parent.rglob("*") if path.is_file()} == before
    assert not list(out.parent.glob("*.partial*"))


def test_what_exists_is_not_overwritten(tmp_path: Path, tokenizer: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    prepare(out, fake(text(1)), tokenizer=tokenizer)
    refused(out, "out: exists and is not an empty directory", fake(text(2)), tokenizer=tokenizer)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("手紙", encoding="utf-8")
    refused(tmp_path / "folder", "folder: exists", fake(text(2)), tokenizer=tokenizer)
    refused(tmp_path / "folder" / "letter.txt", "letter.txt: exists", fake(text(2)), tokenizer=tokenizer)


def test_a_place_that_cannot_be_renamed_to_is_refused_before_the_work(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(FakeReader, "records", never)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link", "dangling"):
        refused(tmp_path / name, f"{name}: a symbolic link", fake(text(1)), tokenizer=tokenizer)
    refused(tmp_path / ("x" * 300), "x: cannot write", fake(text(1)), tokenizer=tokenizer)
    monkeypatch.chdir(tmp_path / "real")
    refused(Path(), "name a new directory", fake(text(1)), tokenizer=tokenizer)


def test_preparations_of_one_name_do_not_meet(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins while the first reads: it is refused by the first one's name, which goes on."""
    reader = FakeReader(fake(text(1)).documents)

    def records(self: FakeReader) -> Iterator[Record]:
        if self is reader:
            with pytest.raises(UserError, match=rf"out\.partial: in use by process {os.getpid()} on "):
                prepare(tmp_path / "out", fake(text(2)), tokenizer=tokenizer)
        yield Record("somewhere:0", b"x")

    monkeypatch.setattr(FakeReader, "records", records)
    prepare(tmp_path / "out", reader, tokenizer=tokenizer)
    assert read_back(tmp_path / "out")["train"] == [("fake", text(1))]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_t12_what_a_killed_preparation_left_is_refused_and_then_removed(tmp_path: Path, tokenizer: Path) -> None:
    left = tmp_path / "out.partial" / "whole"
    left.mkdir(parents=True)
    (left / "tokens-00000.npy").write_bytes(b"half")
    (left.parent / OWNER_FILE).write_text(json.dumps({"pid": 1, "host": socket.gethostname()}))
    with pytest.raises(UserError, match="out"):
        DatasetInfo.open(tmp_path / "out")
    prepare(tmp_path / "out", fake(text(1)), tokenizer=tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_the_users_own_is_not_taken_for_a_partial_one(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.txt").write_text("important")
    with pytest.raises(UserError, match="not made by hayakuchi"):
        prepare(tmp_path / "out", fake(text(1)), tokenizer=tokenizer)
    assert (tmp_path / "out.partial" / "thesis.txt").exists()


def test_others_may_read_the_data_set_if_the_umask_lets_them(tmp_path: Path, tokenizer: Path) -> None:
    prepare(tmp_path / "out", fake(text(1)), tokenizer=tokenizer)
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_damaged_archive_of_a_folder_is_reported(tmp_path: Path, tokenizer: Path) -> None:
    pytest.importorskip("aozora")
    (tmp_path / "works").mkdir()
    (tmp_path / "works" / "1.zip").write_bytes(b"no zip")
    (tmp_path / "works" / "2.txt").write_text(text(1), encoding="utf-8")
    report = prepare(tmp_path / "out", AozoraReader(tmp_path / "works"), tokenizer=tokenizer)
    (source,) = report["sources"]
    (example,) = source["dropped"]["damaged archive"]["examples"]
    assert example["origin"].endswith("1.zip")
    assert "not a zip file" in example["detail"]
    assert report["documents_out"] == 1


def test_a_path_that_is_no_unicode_can_be_reported(tmp_path: Path, tokenizer: Path) -> None:
    reader = FakeReader((Document(text(1), "o:1", "a"),), path=Path("folder\udcff"))
    prepare(tmp_path / "out", reader, tokenizer=tokenizer)
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["sources"][0]["source"]


def test_no_document_left_names_the_sources_and_the_reasons(tmp_path: Path, tokenizer: Path) -> None:
    refused(
        tmp_path / "out", "somewhere.*1 redirect.*o:1", FakeReader((Dropped("o:1", "redirect"),)), tokenizer=tokenizer
    )
    refused(tmp_path / "out", "somewhere.*empty", FakeReader(()), tokenizer=tokenizer)
    refused(tmp_path / "out", "no source", tokenizer=tokenizer)


def test_a_missing_library_ends_the_run_with_its_message(tmp_path: Path, tokenizer: Path) -> None:
    reader = FakeReader((Document(text(1), "o:1", "a"), MissingExtraError("aozora", "corpora", "reading works")))
    refused(tmp_path / "out", r"aozora.*pip install", reader, tokenizer=tokenizer)


def test_too_many_codes_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    reader = FakeReader(tuple(Document(text(n), f"o:{n}", f"code{n}") for n in range(70)))
    refused(tmp_path / "out", "70 codes", reader, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalisation": "nfkd"}, "normalisation: 'nfkd' is not one of nfkc"),
        ({"deduplicate": "all"}, "deduplicate: 'all' is not one of none"),
        ({"subcodes": ("date",)}, "subcodes: 'date' is not one of title"),
        ({"heldout_fraction": 1.0}, "--heldout 1.0: must be"),
        ({"heldout_fraction": float("nan")}, "--heldout nan: must be"),
        ({"workers": 0}, "workers=0 must be"),
        ({"vocabulary_size": 400, "tokenizer": Path("t.model")}, "--vocab-size 400 and --tokenizer t.model: give one"),
        # Before anything is read, since no text supports it.
        ({"vocabulary_size": 10}, "--vocab-size 10: 325 ids are taken"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PrepareOptions(**options)


def test_a_bad_tokenizer_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.model"
    broken.write_bytes(b"no model")
    refused(tmp_path / "out", "broken.model", fake(text(1)), tokenizer=broken)


@pytest.mark.parametrize("limit", [10_000, 60_000], ids=["while staging", "while writing shards"])
def test_a_full_disk_names_the_path_and_leaves_no_half_data_set(tmp_path: Path, tokenizer: Path, limit: int) -> None:
    # Files may not grow beyond the limit: the same OSError on writing as a full disk, with another number. Texts of
    # rare characters take more room as tokens than as text.
    reader = fake(*("𠮟" * 40 + str(number) for number in range(300)))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        refused(tmp_path / "out", r"out.*: cannot write", reader, tokenizer=tokenizer, deduplicate="none")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not (tmp_path / "out").exists()


def test_preparing_text_does_not_load_jax() -> None:
    code = "import sys, hayakuchi.data.prepare_text; sys.exit('jax' in sys.modules or 'grain' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
