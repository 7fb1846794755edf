"""Every command in the documentation is one that the command line takes, and Python snippets run."""

import re
import shlex
from pathlib import Path

import pytest

from hayakuchi import cli

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "dev").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(language):
    for page in PAGES:
        for found in FENCE.finditer(page.read_text(encoding="utf-8")):
            if found[1] == language:
                yield pytest.param(found[2], id=f"{page.relative_to(ROOT)}:{found[2].strip().splitlines()[0][:40]}")


def commands():
    for snippet in snippets("sh"):
        for line in snippet.values[0].replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "hayakuchi":
                yield pytest.param(words[1:], id=f"{snippet.id}: {line[:60]}")


@pytest.mark.parametrize("words", list(commands()))
def test_commands_are_taken(words):
    cli.command(words)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_has_an_example_that_is_taken(verb, capsys):
    with pytest.raises(SystemExit) as ending:
        cli.command([*verb.split(), "--help"])
    assert ending.value.code == 0
    told = capsys.readouterr().out
    example = re.search(r"Example: hayakuchi (.*?)\n\s*\n", told, re.DOTALL)
    assert example, told
    cli.command(shlex.split(example[1]))


@pytest.mark.parametrize("code", list(snippets("python")))
def test_python_snippets_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {})


def test_make_targets_in_the_documentation_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for snippet in snippets("sh"):
        for target in re.findall(r"^make ([a-z]+)", snippet.values[0], re.MULTILINE):
            assert target in targets


def test_readme_tree_names_what_exists():
    """The annotated tree of README.md: every path in it is there."""
    tree = next(text.values[0] for text in snippets("text") if text.id.startswith("README.md"))
    folder: list[str] = []
    for line in tree.splitlines():
        found = re.match(r"^( *)([\w./-]+)", line)
        assert found, line
        folder = [*folder[: len(found[1]) // 2], found[2]]
        assert (ROOT / Path(*folder)).exists(), "/".join(folder)
