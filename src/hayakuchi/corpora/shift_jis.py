"""Shift_JIS: told from damaged UTF-8, and read with the characters that its bytes stand for in JIS X 0208."""

import codecs
import re

# Python's cp932 lets four kinds of bytes pass that Shift_JIS does not have; they are no text.
_NOT_SHIFT_JIS = re.compile("[\x80\xa0\uf8f0-\uf8f3]")
# Six characters of JIS X 0208 become look-alikes in the table of Windows, which cp932 is: a wave dash ～ and not 〜.
# Text in UTF-8, EUC-JP and ISO-2022-JP has the characters themselves, and so has all that is read here.
_MEANT = tuple(zip("～∥－￠￡￢", "〜‖−¢£¬", strict=True))

# With this many whole characters before the first error, a file is damaged UTF-8: as Shift_JIS it would be gibberish.
_UTF8_EVIDENCE = 4
_NO_FIRST_BYTE = bytes(range(0xC2))  # of a UTF-8 character beyond ASCII


def is_damaged_utf8(data: bytes, valid: int) -> bool:
    """Whether data of which only the first `valid` bytes are UTF-8 is UTF-8 all the same, and no older encoding."""
    characters = len(data[:valid].translate(None, _NO_FIRST_BYTE))
    return characters >= _UTF8_EVIDENCE or data.startswith(codecs.BOM_UTF8)


def decode_shift_jis(data: bytes) -> str:
    """Text of Shift_JIS with the extensions of Windows (① ㈱ and others).

    Raises:
      UnicodeDecodeError: not Shift_JIS; `start` is the byte.
    """
    text = data.decode("cp932")
    if bad := _NOT_SHIFT_JIS.search(text):
        at = len(text[: bad.start()].encode("cp932"))
        raise UnicodeDecodeError("cp932", data, at, at + 1, "no character")
    for windows, meant in _MEANT:
        text = text.replace(windows, meant)
    return text
