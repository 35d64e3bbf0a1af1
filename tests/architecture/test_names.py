"""No stale names: what a string, a yaml or a script names of ours is there; a stale one changes behaviour silently."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE = re.compile(r"(?<![\w./-])((?:recipes|reward_fns|vllm_patches)(?:\.[A-Za-z_]\w*)+)(?::([A-Za-z_]\w*))?")
FILE = re.compile(
    r"(?<![\w./<-])((?:recipes|reward_fns|vllm_patches|examples|tests)/[\w./-]+\.(?:py|sh|yaml|md|jsonl?|txt|png))\b"
)
# What tests invent, and what a command makes.
INVENTED = re.compile(r"no_?such|my_recipe|half_and_half|NAME|__file__|recipes\.b$|tandem\.loss$")


def texts(path):
    """A file's strings (docstrings too), or the whole of a script or a yaml."""
    if path.suffix != ".py":
        return [path.read_text()]
    tree = ast.parse(path.read_text())
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def module_problem(dotted, attribute):
    """What is missing of "package.module.attribute", None where it is there."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        source = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if not (source.is_file() or base.is_dir()):
            continue
        names = [*parts[length : length + 1], *([attribute] if attribute else [])]
        code = source.read_text() if source.is_file() else ""
        missing = [name for name in names if not re.search(rf"\b{name}\b", code)]
        return f"{dotted}: no {missing[0]} in {source.relative_to(ROOT)}" if missing else None
    return f"{dotted}: no such module"


def test_no_string_names_what_is_not_there():
    listed = subprocess.run(["git", "ls-files", "*.py", "*.sh", "*.yaml"], cwd=ROOT, capture_output=True, text=True)
    problems = set()
    for name in listed.stdout.split():
        if not (path := ROOT / name).is_file():
            continue  # deleted and not yet committed
        for text in texts(path):
            for dotted, attribute in MODULE.findall(text):
                if not INVENTED.search(f"{attribute} {dotted}") and (problem := module_problem(dotted, attribute)):
                    problems.add(f"{name}: {problem}")
            for file in FILE.findall(text):
                if not INVENTED.search(file) and not (ROOT / file).exists():
                    problems.add(f"{name}: {file} is not there")
    assert not problems, "\n".join(sorted(problems))
