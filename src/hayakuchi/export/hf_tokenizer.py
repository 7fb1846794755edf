"""Our tokenizer as a `tokenizer.json` of the `tokenizers` library, with the same ids for every text.

The library's Unigram model differs from SentencePiece in that any entry of the vocabulary matches in a text: "<0x41>"
or "<eos>" written out would become the byte or the end of the document, and a "▁" a space. So "<" has a stand-in, in
the learnt pieces and in the text; and what would be taken for another character is rewritten to its bytes
("<0xE2><0x96><0x81>"), which then do match.

The ids are equal because both libraries look for the best sum of scores in the same way. They add in float32 and in
float64; `text.tokenizer` sees to it that both sums are exact.
"""

from typing import Any

from hayakuchi.errors import MissingExtraError
from hayakuchi.text.codes import CodeBook
from hayakuchi.text.tokenizer import EOS_ID, FIRST_CODE_ID, PAD_ID, SPACE, UNKNOWN_ID, Tokenizer

# Unicode sets these aside for programs' own use; one of the 32 is in no piece.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# A byte's piece stands only where the normaliser wrote it, and must win there against all other ways.
_BYTE_SCORE = 1e3


def token_names(tokenizer: Tokenizer, codes: CodeBook) -> list[str]:
    """The names of all ids in the export: a control code's slot that has a name is called "<|name|>"."""
    names = list(tokenizer.pieces)
    for name, slot in codes.slots.items():
        names[FIRST_CODE_ID + slot] = f"<|{name}|>"
    return names


def special_names(names: list[str]) -> dict[str, str]:
    """The tokens that `transformers` knows by their part. Every text begins with a code, if only the unconditional."""
    return {
        "bos_token": names[FIRST_CODE_ID],
        "eos_token": names[EOS_ID],
        "unk_token": names[UNKNOWN_ID],
        "pad_token": names[PAD_ID],
    }


def fast_tokenizer(tokenizer: Tokenizer, codes: CodeBook) -> Any:
    """A `tokenizers.Tokenizer` that encodes and decodes as `tokenizer` does.

    The control symbols are special tokens: written out in a text they give their id. (In `transformers`,
    `split_special_tokens=True` turns that off.) Bytes that form no character, which only a model writes, spoil the
    characters of neighbouring bytes too: the whole run becomes U+FFFD.

    Raises:
      MissingExtraError: the library `tokenizers` is not installed.
    """
    try:
        import tokenizers
        from tokenizers import decoders, models, normalizers
    except ImportError as error:
        raise MissingExtraError("tokenizers", "hf", "export --format hf") from error
    pieces = tokenizer.piece_scores()
    names = token_names(tokenizer, codes)
    learnt = {character for piece in pieces if piece.kind == "normal" for character in piece.text}
    stand_in = next(character for character in _NONCHARACTERS if character not in learnt)
    vocabulary = []
    for name, piece in zip(names, pieces, strict=True):
        if piece.kind == "normal":
            vocabulary.append((name.replace("<", stand_in), piece.score))
        else:
            vocabulary.append((name, _BYTE_SCORE if piece.kind == "byte" else piece.score))
    fast = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=UNKNOWN_ID, byte_fallback=True))
    # The stand-in and a digit mark what stood in the text, so that nothing is rewritten twice.
    rewriting = [
        (stand_in, f"{stand_in}0"),
        (SPACE, f"{stand_in}1"),
        ("<", f"{stand_in}2"),
        (" ", SPACE),
        (f"{stand_in}0", _as_bytes(stand_in)),
        (f"{stand_in}1", _as_bytes(SPACE)),
        (f"{stand_in}2", stand_in if "<" in learnt else _as_bytes("<")),
    ]
    fast.normalizer = normalizers.Sequence([normalizers.Replace(old, new) for old, new in rewriting])
    fast.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.Replace(stand_in, "<"), decoders.ByteFallback(), decoders.Fuse()]
    )
    fast.add_special_tokens(
        [
            tokenizers.AddedToken(name, special=True, normalized=False)
            for name, piece in zip(names, pieces, strict=True)
            if piece.kind in ("unknown", "control")
        ]
    )
    return fast


def _as_bytes(character: str) -> str:
    return "".join(f"<0x{byte:02X}>" for byte in character.encode())
