"""What the repository's Markdown files tell a reader to run and where they point."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"<!-- needs (?P<what>[^>]+?) -->\n\s*\Z")
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=.*", re.DOTALL)


@dataclass(frozen=True)
class Fence:
    """A fenced block: `needs` is what the comment `<!-- needs ... -->` on the line above it names, "" without one."""

    file: str
    line: int
    language: str
    body: str
    needs: str


@dataclass(frozen=True, eq=False)
class Command:
    """One shell command of a fence, without its leading environment variables and trailing comment."""

    fence: Fence
    environment: dict[str, str]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.fence.file}:{self.fence.line} {shlex.join(self.words)}"

    @property
    def is_fragment(self) -> bool:
        """Whether dots stand for what the reader has to fill in, or only overrides are shown."""
        return "..." in self.words or "=" in self.words[0]


def documents() -> list[Path]:
    """Every Markdown file of the repository; hidden folders, outputs and the template of a recipe are left out."""
    elsewhere = {"outputs", "build", "template"}
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part in elsewhere or part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


def fences(path: Path) -> Iterator[Fence]:
    """The fenced blocks of a file."""
    text = path.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        marker = NEEDS.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        needs = marker["what"] if marker else ""
        yield Fence(str(path.relative_to(ROOT)), line, match["language"], match["body"], needs)


def commands(fence: Fence) -> Iterator[Command]:
    """The commands of a shell fence, continued lines joined."""
    for line in re.sub(r"\\\n\s*", " ", fence.body).splitlines():
        words = shlex.split(line, comments=True)
        environment = {}
        while words and ASSIGNMENT.fullmatch(words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        if words:
            yield Command(fence, environment, tuple(words))
