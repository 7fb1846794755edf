"""The tokenizer: SentencePiece unigram, set up so that every text comes back exactly.

SentencePiece's defaults lose line feeds, tabs and ideographic spaces and rewrite … and ㈱. Here its normaliser is the
identity, characters it has not learnt become their UTF-8 bytes, and the line feed and the space are pieces of their
own in every vocabulary. What stands for a space inside SentencePiece, U+2581 "▁", is encoded by its bytes, so that it
is not taken for one.

Ids: `PAD_ID`, `UNKNOWN_ID`, `EOS_ID`, then `CODE_SLOTS` control symbols, which no text encodes to, then the line feed
and the space, the 256 bytes, and the learnt pieces.
"""

import functools
import hashlib
import io
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2

from hayakuchi.errors import UserError
from hayakuchi.text.codes import CODE_SLOTS
from hayakuchi.text.training_lines import Corpus, sample_lines

PAD_ID = 0
UNKNOWN_ID = 1
EOS_ID = 2
FIRST_CODE_ID = 3
SPACE = "▁"

SPECIAL_PIECES = ("<pad>", "<unk>", "<eos>", *(f"<code:{slot}>" for slot in range(CODE_SLOTS)), "\n", SPACE)
FIRST_BYTE_ID = len(SPECIAL_PIECES)
FIRST_LEARNT_ID = FIRST_BYTE_ID + 256

_SPACE_SIGN_IDS = np.array([FIRST_BYTE_ID + byte for byte in SPACE.encode()], np.int32)
# SentencePiece takes 20 bytes of memory for each byte of a text, so a long one goes in by stretches of whole lines. A
# line feed is always a piece of its own, hence the ids are the same.
_STRETCH_CHARACTERS = 1 << 20
_PART = re.compile(f"{SPACE}+|[^{SPACE}]{{0,{_STRETCH_CHARACTERS}}}\n|[^{SPACE}\n]+\n?")
_MODEL_LIMIT_BYTES = 64 << 20

# Texts that tokenizers are known to damage, for the gate.
HARD_TEXTS = (
    "",
    "\n",
    " ",
    "　a  b\n…㈱㍻①ﾊﾟ\t終",
    "  先頭と末尾の空白  \n\n　",
    "𠮟葛󠄀👨‍👩‍👧か\u3099",
    "0123456789０１２３４５",
    "▁のある▁▁文▅⁇",
    "<unk><pad><eos><code:1><0xE3></s>",
    "\x00\x1f\x7f\x85\u2028\ufeff\ufffd\uffff\U0010ffff",
)

PieceKind = Literal["normal", "unknown", "control", "user-defined", "byte"]


class Piece(NamedTuple):
    """An entry of the vocabulary, with spaces written "▁" and bytes "<0xE3>"; `score` is its log-probability."""

    text: str
    score: float
    kind: PieceKind


class Tokenizer:
    """A trained tokenizer.

    Attributes:
      model: the SentencePiece model file.
      sha256: hash of `model`, in hexadecimal.
      vocabulary_size: V, number of ids.
    """

    pad_id = PAD_ID
    unk_id = UNKNOWN_ID
    eos_id = EOS_ID

    def __init__(self, model: bytes, where: str = "tokenizer") -> None:
        """Loads a model from memory.

        Raises:
          UserError: `model` is not one that `train_tokenizer` wrote.
        """
        self.model = model
        self.sha256 = hashlib.sha256(model).hexdigest()
        try:
            _read_proto(model)  # SentencePiece itself prints lines of its own about a file that is no model
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            special = tuple(self._processor.id_to_piece(list(range(FIRST_LEARNT_ID))))
        except (RuntimeError, ValueError, IndexError, DecodeError) as error:
            raise UserError(f"{where}: not a tokenizer; `hayakuchi prepare text` trains one") from error
        if special != (*SPECIAL_PIECES, *(f"<0x{byte:02X}>" for byte in range(256))):
            raise UserError(f"{where}: a SentencePiece model that Hayakuchi did not train; its special pieces differ")
        self.vocabulary_size: int = self._processor.vocab_size()

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Reads a model file.

        Raises:
          UserError: the file cannot be read or is not a model that `train_tokenizer` wrote.
        """
        try:
            if path.stat().st_size > _MODEL_LIMIT_BYTES:
                raise UserError(f"{path}: larger than {_MODEL_LIMIT_BYTES >> 20} MiB; this is not a tokenizer")
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise UserError(f"{path}: cannot read the tokenizer ({error.strerror})") from error

    def code_id(self, slot: int) -> int:
        """The id of a control code's slot (see `codes.CodeBook`)."""
        assert 0 <= slot < CODE_SLOTS
        return FIRST_CODE_ID + slot

    def encode(self, text: str) -> NDArray[np.int32]:
        """The ids of a text, [T]; none of them a special id.

        Raises:
          UserError: the text holds a lone surrogate, which `normalise` would have removed.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[NDArray[np.int32]]:
        """`encode` of each text, by `threads` threads."""
        parts = [_parts(text) for text in texts]
        try:
            encoded = [part.encode() for each in parts for part in each if not part.startswith(SPACE)]
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text holds a lone surrogate, U+{ord(error.object[error.start]):04X}; normalise it first"
            ) from error
        arrays = iter(self._processor.encode(encoded, num_threads=threads, return_type="numpy"))
        joined = []
        for each in parts:
            ids = [np.tile(_SPACE_SIGN_IDS, len(part)) if part.startswith(SPACE) else next(arrays) for part in each]
            joined.append(ids[0] if len(ids) == 1 else np.concatenate(ids))
        return joined

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of ids. Special ids give nothing; bytes that are not UTF-8, which only a model writes, U+FFFD."""
        table = self.piece_bytes
        # A list of Python integers indexes several times faster than an array.
        return b"".join([table[index] for index in np.asarray(ids).tolist()]).decode("utf-8", "replace")

    @functools.cached_property
    def piece_bytes(self) -> list[bytes]:
        """UTF-8 of what each id adds to a text; b"" for special ids."""
        return [_text_of(index, piece) for index, piece in enumerate(self.pieces)]

    @functools.cached_property
    def pieces(self) -> list[str]:
        """Every entry of the vocabulary as SentencePiece writes it (see `Piece.text`)."""
        pieces: list[str] = self._processor.id_to_piece(list(range(self.vocabulary_size)))
        return pieces

    def piece_scores(self) -> list[Piece]:
        """Every entry of the vocabulary with its score and kind, for export to other formats."""
        scores: list[float] = self._processor.get_score(list(range(self.vocabulary_size)))
        entries = enumerate(zip(self.pieces, scores, strict=True))
        return [Piece(text, score, _kind(index)) for index, (text, score) in entries]


@dataclass(frozen=True)
class TokenizerReport:
    """What came of training; the rates are those of the held-out texts.

    Attributes:
      vocabulary_size: V, number of ids.
      characters: characters of the held-out texts (of some training lines where nothing was held out).
      tokens: ids these became.
      characters_per_token: their ratio.
      byte_fallback_rate: share of `tokens` that are single bytes of characters not learnt.
      split_lines: lines that were cut to pass the trainer's limit of 4,192 bytes; every part was used.
      skipped_lines: lines left out by sampling, since the corpus is larger than what is trained on.
      seconds: time the whole took.
    """

    vocabulary_size: int
    characters: int
    tokens: int
    characters_per_token: float
    byte_fallback_rate: float
    split_lines: int
    skipped_lines: int
    seconds: float


def train_tokenizer(
    texts: Iterable[str],
    heldout: Sequence[str],
    path: Path,
    *,
    vocabulary_size: int | None = None,
    threads: int = 2,
    max_training_bytes: int = 20_000_000,
) -> TokenizerReport:
    """Trains a tokenizer and writes it to `path`, provided that every held-out text comes back exactly.

    The same texts and arguments give the same file. `threads` is one of these arguments: each thread forms its own
    sum of floats.

    Args:
      texts: normalised documents; streamed, with at most `max_training_bytes` of their lines held in memory.
      heldout: documents for the round-trip gate and the report.
      path: the model file; replaced in one step.
      vocabulary_size: V; None takes 40 * bytes ** 0.4 (4,000 at 100 kB, 10,000 at 1 MB, 32,000 from 20 MB on), and
        fewer where the texts do not hold as many pieces.
      threads: threads of the trainer.
      max_training_bytes: UTF-8 size above which a random sample of the lines is trained on.

    Raises:
      UserError: no text, a vocabulary larger or smaller than the texts support, a text that does not come back, or a
        `path` that cannot be written.
    """
    start = time.perf_counter()
    check_vocabulary_size(vocabulary_size)
    corpus = sample_lines(texts, max_training_bytes)
    if not corpus.lines:
        raise UserError("there is no text to train a tokenizer on: all documents are empty")
    tokenizer = Tokenizer(_train(corpus, vocabulary_size, threads))
    check_round_trip(tokenizer, [*HARD_TEXTS, *heldout])
    _write(path, tokenizer.model)
    samples = list(heldout) or [line.decode() for line in corpus.lines[:1_000]]
    ids = np.concatenate(tokenizer.encode_batch(samples, threads))
    characters = sum(map(len, samples))
    return TokenizerReport(
        vocabulary_size=tokenizer.vocabulary_size,
        characters=characters,
        tokens=ids.size,
        characters_per_token=characters / max(ids.size, 1),
        byte_fallback_rate=float(np.mean((ids >= FIRST_BYTE_ID) & (ids < FIRST_LEARNT_ID))) if ids.size else 0.0,
        split_lines=corpus.split,
        skipped_lines=corpus.skipped,
        seconds=time.perf_counter() - start,
    )


def check_vocabulary_size(vocabulary_size: int | None) -> None:
    """Raises a UserError for a size that no texts can support."""
    if vocabulary_size is not None and vocabulary_size <= FIRST_LEARNT_ID:
        raise UserError(
            f"--vocab-size {vocabulary_size}: {FIRST_LEARNT_ID} ids are taken already; ask for some thousands"
        )


def check_round_trip(tokenizer: Tokenizer, samples: Sequence[str]) -> None:
    """The gate: `decode(encode(text)) == text` for each sample.

    Raises:
      UserError: a sample comes back changed; the message shows where.
    """
    for text, ids in zip(samples, tokenizer.encode_batch(samples), strict=True):
        back = tokenizer.decode(ids)
        if back != text:
            at = next((i for i, pair in enumerate(zip(text, back, strict=False)) if pair[0] != pair[1]), len(back))
            shown = slice(max(at - 10, 0), at + 20)
            raise UserError(
                f"the tokenizer gives back {back[shown]!r} for {text[shown]!r} (character {at} of a text);"
                " report this text as a defect of Hayakuchi"
            )


def _parts(text: str) -> list[str]:
    """The text cut into runs of "▁", which SentencePiece would take for spaces, and stretches without."""
    return _PART.findall(text) if SPACE in text or len(text) > _STRETCH_CHARACTERS else [text]


def _train(corpus: Corpus, vocabulary_size: int | None, threads: int) -> bytes:
    if vocabulary_size is None:
        alphabet = len(set(b"".join(corpus.lines).decode()))
        automatic = max(min(int(40 * corpus.size**0.4) // 64 * 64, 32_000), FIRST_LEARNT_ID + alphabet)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus.lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=automatic if vocabulary_size is None else vocabulary_size,
            hard_vocab_limit=vocabulary_size is not None,
            # The rarest characters, one in 2,000 of all, are left to bytes: a piece seen once or twice learns nothing.
            character_coverage=0.9995,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            split_digits=True,
            max_sentencepiece_length=8,
            pad_id=PAD_ID,
            unk_id=UNKNOWN_ID,
            eos_id=EOS_ID,
            bos_id=-1,
            pad_piece=SPECIAL_PIECES[PAD_ID],
            unk_piece=SPECIAL_PIECES[UNKNOWN_ID],
            eos_piece=SPECIAL_PIECES[EOS_ID],
            control_symbols=list(SPECIAL_PIECES[FIRST_CODE_ID : FIRST_CODE_ID + CODE_SLOTS]),
            user_defined_symbols=["\n", SPACE],
            num_threads=threads,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(_training_advice(str(error), vocabulary_size)) from error
    return _exact_scores(model.getvalue())


def _read_proto(model: bytes) -> Any:
    """The model file as a protocol buffer; raises DecodeError or ValueError if it is none."""
    # protobuf makes the class when it is imported.
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    if not proto.pieces:
        raise ValueError("no pieces")
    return proto


def _exact_scores(model: bytes) -> bytes:
    """Rounds the scores of a model to 64ths.

    Sums of such scores are exact in float32 up to 2**18, which is 30,000 tokens at a stretch. Equally good ways to cut
    a text (いい い, い いい) then tie both in SentencePiece, which adds in float32, and in the `tokenizers` library,
    which adds in float64, and both take the same one. As trained, rounding would decide, differently in each.
    """
    proto = _read_proto(model)
    for piece in proto.pieces:
        piece.score = round(64 * piece.score) / 64
    exact: bytes = proto.SerializeToString()
    return exact


def _training_advice(message: str, vocabulary_size: int | None) -> str:
    if largest := re.search(r"to a value <= (\d+)", message):
        return f"--vocab-size {vocabulary_size} is more than the texts support: the largest that works is {largest[1]}"
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return f"--vocab-size {vocabulary_size} is too small for the characters of the texts: take {needed[1]} or more"
    return f"SentencePiece cannot train on these texts with --vocab-size {vocabulary_size}: {message.strip()}"


def _write(path: Path, model: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(model)
        partial.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot write the tokenizer ({error.strerror})") from error


def _kind(index: int) -> PieceKind:
    if index == UNKNOWN_ID:
        return "unknown"
    if index < FIRST_CODE_ID + CODE_SLOTS:
        return "control"
    if index < FIRST_BYTE_ID:
        return "user-defined"
    return "byte" if index < FIRST_LEARNT_ID else "normal"


def _text_of(index: int, piece: str) -> bytes:
    kind = _kind(index)
    if kind in ("unknown", "control"):
        return b""
    if kind == "byte":
        return bytes([index - FIRST_BYTE_ID])
    return piece.replace(SPACE, " ").encode()
