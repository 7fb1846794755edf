"""JVS, 100 speakers of Japanese (Takamichi et al. 2019, arXiv 1908.06248), and corpora of the same layout.

`jvs001/parallel100/{transcripts_utf8.txt,wav24kHz16bit/*.wav}` and so on. The defects that its users have published
are in `_DEFECTS` and `_RIGHT_NAMES`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.recording import Recording, Split
from hayakuchi.corpora.transcripts import Clip, Transcript, colon_transcripts, pair, sound_files
from hayakuchi.errors import UserError

SETS = ("parallel100", "nonpara30", "whisper10", "falset10")
NORMAL_SETS = ("parallel100", "nonpara30")
TRANSCRIPTS = "transcripts_utf8.txt"
SOUNDS = "wav24kHz16bit"

_SPEAKER = re.compile(r"jvs\d{3}")

# Of parallel100: speaker and numbers of VOICEACTRESS100 whose recording is not of the sentence.
_WRONG_RECORDINGS = {
    "jvs009": (86, 95),
    "jvs017": (82,),
    "jvs018": (72,),
    "jvs022": (47,),
    "jvs024": (88,),
    "jvs036": (57,),
    "jvs038": (6, 41),
    "jvs043": (85,),
    "jvs047": (85,),
    "jvs048": (43, 76),
    "jvs051": (25,),
    "jvs055": (56, 76, 99),
    "jvs059": (61, 64, 66, 74),
    "jvs060": (82,),
    "jvs074": (62,),
    "jvs098": (60, 99),
}
# Name of a clip: reason and detail of `Dropped`.
_DEFECTS = {
    "jvs058/parallel100/VOICEACTRESS100_014": ("two sentences", "its recording holds sentence 015 too"),
    **{
        f"jvs058/parallel100/VOICEACTRESS100_{number:03}": (
            "shifted recording",
            f"its recording is of sentence {number + 1:03}",
        )
        for number in range(15, 22)
    },
    **{
        f"{speaker}/parallel100/VOICEACTRESS100_{number:03}": (
            "wrong recording",
            "published as not matching its transcript",
        )
        for speaker, numbers in _WRONG_RECORDINGS.items()
        for number in numbers
    },
}
# Of falset10: the names that misnamed files should have.
_RIGHT_NAMES = {
    "jvs001": {
        "BASIC5000_0235": "BASIC5000_1818",
        "BASIC5000_0408": "BASIC5000_1866",
        "BASIC5000_1140": "BASIC5000_0025",
        "BASIC5000_1356": "BASIC5000_1485",
        "BASIC5000_1635": "TRAVEL1000_0429",
    },
    "jvs088": {
        **{f"{number:03}": f"VOICEACTRESS100_{number:03}" for number in range(1, 6)},
        "006": "BASIC5000_0837",
        "007": "BASIC5000_0284",
        "008": "BASIC5000_1590",
        "009": "BASIC5000_0176",
        "010": "BASIC5000_1048",
    },
}
# The usual split keeps 90 of 100 parallel and 28 of 30 other sentences; validation and test are both held out here.
_HELD_OUT_SHARES = {"parallel100": 10 / 100, "nonpara30": 2 / 30}


@dataclass(frozen=True)
class JvsReader:
    """Reads the chosen sets of all speakers, with the usual split.

    Held out are the last tenth of the parallel sentences and the last fifteenth of each speaker's others, in the order
    of their names, wherever they are spoken: no speaker is trained on a sentence that is held out for another.

    Attributes:
      path: the folder of the speakers' folders, or the one around it.
      sets: some of `SETS`. Whispered and falsetto speech are other registers than a speaker's own: one voice would be
        learned from all, so they are read only where they are asked for.
    """

    path: Path
    sets: tuple[str, ...] = NORMAL_SETS

    def recordings(self) -> Iterator[Recording | Dropped]:
        """Gives the clips, speaker by speaker and set by set (see `SpeechReader.recordings`)."""
        root = self.path / "jvs_ver1" if (self.path / "jvs_ver1").is_dir() else self.path
        speakers = _speakers(root)
        held_out = _held_out(root, speakers)
        for speaker in speakers:
            for name in self.sets:
                for clip in _clips(root, speaker, name):
                    if isinstance(clip, Dropped):
                        yield clip
                    elif defect := _DEFECTS.get(clip.name):
                        yield Dropped(clip.name, *defect)
                    else:
                        split: Split = "heldout" if clip.transcript.clip in held_out else "train"
                        yield Recording(clip.name, speaker, clip.transcript.text, clip.audio, split)


def held_out_names(names: Iterable[str], set_name: str) -> set[str]:
    """Which of the sentences of a set of `NORMAL_SETS` are held out: at least one, unless there is only one."""
    ordered = sorted(set(names))
    count = max(1, round(len(ordered) * _HELD_OUT_SHARES[set_name])) if len(ordered) > 1 else 0
    return set(ordered[len(ordered) - count :])


def _speakers(root: Path) -> list[str]:
    try:
        speakers = sorted(path.name for path in root.iterdir() if _SPEAKER.fullmatch(path.name) and path.is_dir())
    except OSError as error:
        raise UserError(f"{root}: cannot read the folder ({error.strerror})") from error
    if not speakers:
        raise UserError(f"{root}: no folder jvs001 in it; name the folder jvs_ver1 of the unpacked corpus")
    return speakers


def _held_out(root: Path, speakers: list[str]) -> set[str]:
    """Names of the sentences that are held out for every speaker, whichever sets are read."""
    names = {
        (speaker, set_name): [
            entry.clip for entry in _transcripts(root, speaker, set_name) if isinstance(entry, Transcript)
        ]
        for speaker in speakers
        for set_name in NORMAL_SETS
    }
    parallel = [name for speaker in speakers for name in names[speaker, "parallel100"]]
    others = (held_out_names(names[speaker, "nonpara30"], "nonpara30") for speaker in speakers)
    return held_out_names(parallel, "parallel100").union(*others)


def _transcripts(root: Path, speaker: str, set_name: str) -> Iterator[Transcript | Dropped]:
    path = root / speaker / set_name / TRANSCRIPTS
    if path.is_file():
        yield from colon_transcripts(path)
    else:
        yield Dropped(f"{speaker}/{set_name}", "no transcripts", f"no file {TRANSCRIPTS}")


def _clips(root: Path, speaker: str, set_name: str) -> Iterator[Clip | Dropped]:
    files = sound_files(root / speaker / set_name / SOUNDS)
    if set_name == "falset10":
        for wrong, right in _RIGHT_NAMES.get(speaker, {}).items():
            if wrong in files and right not in files:
                files[right] = files.pop(wrong)
    yield from pair(_transcripts(root, speaker, set_name), files, f"{speaker}/{set_name}/")
