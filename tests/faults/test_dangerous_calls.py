"""Every call of the project that could run foreign code, or start a program, with the reason why it is safe.

A call that is not listed fails the test, and so does an entry whose call is gone.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("recipes", "reward_fns", "vllm_patches", "examples")
BUILTINS = {"eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "subprocess", "yaml", "runpy", "code"}
FUNCTIONS = {
    "torch.load",
    "numpy.load",
    "np.load",
    "os.system",
    "os.popen",
    "os.execv",
    "os.execve",
    "os.execvp",
    "os.posix_spawn",
    "pandas.read_pickle",
    "pd.read_pickle",
    "sympy.sympify",
    "sympy.parse_expr",
}
METHODS = {"exec_module"}

_YAML = "safe_load makes plain data only; the file is one of the package's or a prompt file that the user names"
ALLOWED: dict[tuple[str, str], str] = {
    ("examples/quickstart_train.py", "subprocess.Popen"): "starts a recipe of this package, arguments as a list",
    ("recipes/common/gloo_checkpoint_engine.py", "pickle.dumps"): "describes weights to the workers of the same run",
    (
        "recipes/common/gloo_checkpoint_engine.py",
        "pickle.loads",
    ): "from rank 0 of the same run, over its own group",
    (
        "recipes/common/reward_call.py",
        "exec_module",
    ): "the reward file that the user named",
    (
        "recipes/doctor/probes.py",
        "subprocess.run",
    ): "this interpreter on code of the module, with a limit",
    ("recipes/evaluation/benchmark.py", "yaml.safe_load"): _YAML,
    (
        "recipes/evaluation/checkpoint.py",
        "subprocess.run",
    ): "verl's merger on a checkpoint of one's own: it unpickles the shards, as resuming does",
    ("recipes/evaluation/prompts.py", "yaml.safe_load"): _YAML,
    ("recipes/evaluation/run_card.py", "subprocess.run"): "git describe in the package's folder, with a time limit",
    ("recipes/pasodoble/cold_start/make_sft_data.py", "yaml.safe_load"): _YAML,
    ("recipes/step_ppo/pipeline/iterate.py", "subprocess.run"): "a stage of this package, arguments as a list",
    ("reward_fns/fork_server.py", "subprocess.Popen"): "this interpreter on a module of the package",
    ("reward_fns/forked_worker.py", "marshal.dumps"): "writes what `check_plain` has let through",
    ("reward_fns/forked_worker.py", "pickle.loads"): "a request of the parent, which trusts itself, to its child",
    ("reward_fns/pool.py", "pickle.dumps"): "the other end of that",
    ("reward_fns/slot.py", "marshal.loads"): "a worker's reply: marshal makes plain data and calls nothing",
}


def dangerous(tree: ast.AST) -> set[str]:
    """Names of the calls of a module that need a reason; what was imported under another name is found, too."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        written = ast.unparse(node.func)
        head, _, rest = written.partition(".")
        full = ".".join(filter(None, (names.get(head, head), rest)))
        if (
            (full in BUILTINS)
            or full in FUNCTIONS
            or (full.partition(".")[0] in MODULES and "." in full)
            or (isinstance(node.func, ast.Attribute) and node.func.attr in METHODS)
        ):
            found.add(full if full.rpartition(".")[2] not in METHODS else full.rpartition(".")[2])
    return found


def calls() -> set[tuple[str, str]]:
    return {
        (str(path.relative_to(ROOT)), call)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for call in dangerous(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_every_call_is_listed_with_its_reason():
    found = calls()
    assert sorted(found - ALLOWED.keys()) == [], "say in ALLOWED why this is safe, or do it another way"
    assert sorted(ALLOWED.keys() - found) == [], "these calls are gone"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch as t\nt.load(path)", {"torch.load"}),
        ("from torch import load\nload(path, weights_only=False)", {"torch.load"}),
        ("from pickle import loads as read\nread(data)", {"pickle.loads"}),
        ("import subprocess\nsubprocess.run(['ls'])", {"subprocess.run"}),
        ("eval(answer)", {"eval"}),
        ("model.eval()\nre.compile(pattern)\njson.load(file)", set()),
        ("import yaml\nyaml.load(text)", {"yaml.load"}),
        ("spec.loader.exec_module(module)", {"exec_module"}),
    ],
)
def test_the_walk_finds_what_it_should(source, found):
    assert dangerous(ast.parse(source)) == found
