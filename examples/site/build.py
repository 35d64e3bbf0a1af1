"""Build the site of the repository's own pages, with the extra `site`: `python examples/site/build.py`.

No page is written twice: the Markdown files that git lists are laid out as they lie, beside the files that they link
to, and an API page is made from the docstrings of `reward_fns`. Strict: a dead link fails the build.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
API = ("math", "majority", "multiple_choice", "judge", "format", "extract", "result", "trainers", "pool")


# Its tag is one that only mkdocs reads.
MERMAID = """  - pymdownx.superfences:
      custom_fences: [{name: mermaid, class: mermaid, format: !!python/name:pymdownx.superfences.fence_code_format }]
"""
# The theme is narrow, breaks code in a cell anywhere, and leaves room for a table of contents that a page has not.
CSS = """.md-grid { max-width: 70rem; }
.md-typeset td code { word-break: normal; }
.md-typeset table:not([class]) :is(td, th) { padding: .6em .9em; }
.md-sidebar--secondary:not(:has(.md-nav__link)) { display: none; }
"""


def lay_out(folder: Path) -> None:
    """Copy the pages, and every file of the repository that one of them links to."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pages = [ROOT / name for name in listed.split() if "/template/" not in name]
    linked = {(page.parent / target).resolve() for page in pages for target in LINK.findall(page.read_text("utf-8"))}
    for path in {*pages, *linked}:
        if path.is_file():
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    (folder / "site.css").write_text(CSS, "utf-8")
    api = [f"## reward_fns.{name}\n\n::: reward_fns.{name}\n" for name in API]
    (folder / "reward_fns" / "API.md").write_text("# reward_fns: API\n\n" + "\n".join(api), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/site"), help="folder of the built site")
    parser.add_argument("--serve", action="store_true", help="show it on this machine instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        config, pages = Path(scratch) / "mkdocs.yml", Path(scratch) / "docs"
        pages.mkdir()
        lay_out(pages)
        config.write_text((HERE / "mkdocs.yml").read_text("utf-8") + MERMAID, "utf-8")
        what = ["serve"] if arguments.serve else ["build", "-d", str(arguments.out.absolute())]
        command = [sys.executable, "-m", "mkdocs", *what, "--strict", "-f", str(config)]
        return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
