"""The walls between the rooms: what each part of the project may import."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("import_graph", Path(__file__).parent / "import_graph.py")
walls = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(walls)

# A recipe is a folder with a main.py and a config of its own; evaluation is a tool.
RECIPES = tuple(
    path.parent.name
    for path in sorted((walls.ROOT / "recipes").glob("*/main.py"))
    if (path.parent / "config").is_dir() and path.parent.name != "evaluation"
)
# From the ground up; a room imports only from floors below its own.
FLOORS = (
    ("recipes.errors", "reward_fns", "vllm_patches"),
    ("recipes.core",),
    ("recipes.plugin",),
    ("recipes.evaluation",),
    ("recipes.launch",),
    tuple(f"recipes.{recipe}" for recipe in RECIPES),
)
UPSTREAM = {"verl", "ray", "vllm", "transfer_queue"}

FILES = {name: path for package in walls.PACKAGES for name, path in walls.sources(package).items()}
RECIPE_MODULES = [name for name in FILES if name.startswith(tuple(f"recipes.{recipe}" for recipe in RECIPES))]


def is_pure_by_place(name: str) -> bool:
    """The root of a recipe is pure but for the names that stand on verl, Ray or vLLM."""
    return name.count(".") == 2 and FILES[name].stem not in walls.IMPURE


def test_the_five_methods_are_found():
    assert {"sppo", "tandem", "serl", "pasodoble", "step_ppo"} <= set(RECIPES)


def test_reward_functions_stand_alone():
    banned = {"verl", "torch", "ray", "vllm", "transformers", "recipes", "vllm_patches"}
    offences = {
        name: walls.top_level(walls.imported_names(path)) & banned for name, path in walls.sources("reward_fns").items()
    }
    assert {name: found for name, found in offences.items() if found} == {}


def test_only_the_client_and_the_judge_speak_to_an_endpoint():
    users = {name for name, path in walls.sources("reward_fns").items() if "openai" in walls.imported_names(path)}
    assert users <= {"reward_fns.endpoint", "reward_fns.judge"}


def test_vllm_patches_know_no_trainer():
    banned = {"verl", "ray", "transfer_queue", "recipes"}
    offences = {
        name: walls.top_level(walls.imported_names(path)) & banned
        for name, path in walls.sources("vllm_patches").items()
    }
    assert {name: found for name, found in offences.items() if found} == {}


@pytest.mark.parametrize("name", [name for name in RECIPE_MODULES if is_pure_by_place(name)])
def test_the_root_of_a_recipe_is_pure(name):
    edges = walls.graph()
    for reached in walls.reachable(name, edges):
        found = walls.top_level(walls.imported_names(FILES[reached])) & UPSTREAM
        assert not found, (
            f"{name} reaches {reached}, which imports {sorted(found)}; keep it pure, or put it beside the trainer"
        )


@pytest.mark.parametrize("recipe", RECIPES)
def test_nobody_imports_a_recipe_but_itself(recipe):
    room = f"recipes.{recipe}"
    offences = {
        name: sorted(found)
        for name, path in FILES.items()
        if not (name == room or name.startswith(f"{room}."))
        and (found := {used for used in walls.imported_names(path) if used == room or used.startswith(f"{room}.")})
    }
    assert offences == {}


def words_of(path: Path) -> set[str]:
    """Names and words of the strings in a file's code; docstrings are left out."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in prose]
    texts += [getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes]
    return set(re.findall("[a-z_]+", " ".join(text for text in texts if isinstance(text, str)).lower()))


@pytest.mark.parametrize("room", ["core", "launch"])
def test_the_rooms_under_the_methods_know_none(room):
    """What they need of a method comes in its `Recipe`, so that a sixth one, with two models, edits neither."""
    methods = {*RECIPES, "proposer", "solver", "junior", "senior", "prm", "votes"}
    offences = {name: sorted(found) for name, path in FILES.items() if name.startswith(f"recipes.{room}.")
                and (found := methods & words_of(path))}  # fmt: skip
    assert offences == {}


def circles(edges: dict[str, set[str]]) -> list[str]:
    return [name for name in edges if any(name in walls.reachable(used, edges) for used in edges[name])]


def test_no_import_circle_lazy_imports_and_annotations_counted():
    assert circles(walls.graph()) == []


def test_imports_point_from_a_higher_floor_to_a_lower_one():
    floor = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
    rooms = {walls.room(name) for name in FILES} - {"recipes"}
    assert rooms == floor.keys(), "give every room a floor"
    offences = [
        f"{name} -> {used}"
        for name, targets in walls.graph().items()
        for used in targets
        if "recipes" not in (name, used)
        and walls.room(name) != walls.room(used)
        and floor[walls.room(used)] >= floor[walls.room(name)]
    ]
    assert offences == []


def test_the_circle_test_sees_lazy_imports_and_annotations(tmp_path, monkeypatch):
    monkeypatch.setattr(walls, "ROOT", tmp_path)
    (tmp_path / "recipes").mkdir()
    a, b = tmp_path / "recipes" / "a.py", tmp_path / "recipes" / "b.py"
    a.write_text("def f():\n    from recipes import b\n")
    b.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from recipes.a import f\n")
    names = {"recipes.a", "recipes.b"}
    assert circles({"recipes.a": walls.own_imports(a, names), "recipes.b": walls.own_imports(b, names)}) != []


def test_the_walls_test_sees_imports_inside_functions_and_relative_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(walls, "ROOT", tmp_path)
    folder = tmp_path / "recipes" / "serl"
    folder.mkdir(parents=True)
    (folder / "vote.py").write_text("def f():\n    import verl.utils as u\n    from ..tandem import loss\n")
    names = walls.imported_names(folder / "vote.py")
    assert {"verl.utils", "recipes.tandem", "recipes.tandem.loss"} <= names
