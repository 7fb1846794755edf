"""Sources of speech as they are written on the command line: "KIND:PATH[,key=value...]"."""

import re
from typing import cast

from hayakuchi.corpora.common_voice import CommonVoiceReader
from hayakuchi.corpora.embedded_voice import EmbeddedVoiceReader
from hayakuchi.corpora.esd import EsdReader
from hayakuchi.corpora.jsut import JsutReader
from hayakuchi.corpora.jvs import SETS, JvsReader
from hayakuchi.corpora.ljspeech import LjSpeechReader
from hayakuchi.corpora.recording import SpeechReader
from hayakuchi.corpora.specs import Kind, parse_spec
from hayakuchi.errors import UserError


def _sets(where: str, key: str, value: str) -> tuple[str, ...]:
    names = value.split("+")
    for name in names:
        if name not in SETS:
            raise UserError(f"{where}: {key}={value!r}: {name!r} is not one of {', '.join(SETS)}; join several by +")
    return tuple(name for name in SETS if name in names)


def _count(where: str, key: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", value):
        raise UserError(f"{where}: {key}={value!r} is not a number such as 4")
    return int(value)


_KINDS = {
    "jvs": Kind(JvsReader, {"sets": _sets}),
    "jsut": Kind(JsutReader),
    "ljspeech": Kind(LjSpeechReader),
    "common_voice": Kind(CommonVoiceReader),
    "esd": Kind(EsdReader),
    "embedded": Kind(EmbeddedVoiceReader, {"speakers": _count, "sentences": _count}, path="any"),
}


def parse_speech_source(spec: str) -> SpeechReader:
    """The reader of a source such as "jvs:jvs_ver1,sets=parallel100+whisper10" or "embedded" (see `parse_spec`).

    "embedded" has its corpus made in the user's cache, "embedded:PATH,speakers=4,sentences=300" in that folder.

    Raises:
      UserError: unknown kind or option, a value it cannot take, no such path.
    """
    return cast("SpeechReader", parse_spec(spec, _KINDS))
