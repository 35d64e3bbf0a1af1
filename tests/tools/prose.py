"""Words and sentence lengths of the pages, tables and code left out: `python tests/tools/prose.py [PAGE ...]`.

Exits with 1 when a sentence has more than 40 words, and prints it.
"""

import re
import subprocess
import sys
from pathlib import Path

LONGEST = 40
# A sentence may begin with a name in lower case; "et al." ends none.
END = re.compile(r"(?<=[\w)`\]*%][.?!:])(?<! al\.)[)*\"]*\s+")
NOT_PROSE = re.compile(r"^(\||#|<|!\[|    |\$\$)")


def sentences(text: str) -> list[str]:
    """The sentences of a page."""
    text = re.sub(r"^```.*?^```\n", "\n", text, flags=re.DOTALL | re.MULTILINE)
    blocks, block = [], []
    for line in [*text.splitlines(), ""]:
        new = re.match(r"\s*([-*]|\d+\.) ", line)
        if not line.strip() or NOT_PROSE.match(line) or new:
            blocks.append(" ".join(block))
            block = []
        if line.strip() and not NOT_PROSE.match(line):
            block.append(line.strip())
    spoken = (re.sub(r"\]\([^)]*\)", "]", text) for text in [*blocks, " ".join(block)])
    return [found for text in spoken for found in END.split(text) if len(found.split()) > 1]


def main(pages: list[str]) -> int:
    pages = (
        pages or subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    )
    words, total, found, too_long = 0, 0, 0, []
    for page in pages:
        text = Path(page).read_text(encoding="utf-8")
        words += sum(any(map(str.isalnum, word)) for word in text.split())
        for sentence in sentences(text):
            length = len(sentence.split())
            total, found = total + length, found + 1
            if length > LONGEST:
                too_long.append((length, page, sentence))
    for length, page, sentence in sorted(too_long, reverse=True):
        print(f"{length} words, {page}: {sentence[:400]}\n")
    print(
        f"{words} words on {len(pages)} pages; {found} sentences of {total / found:.1f} words; "
        f"{len(too_long)} over {LONGEST}"
    )
    return int(bool(too_long))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
