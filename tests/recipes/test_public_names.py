"""The pure functions of a method, by the names that other jobs import; naming the package imports none of them."""

import importlib
import subprocess
import sys

import pytest

RECIPES = ("sppo", "serl", "pasodoble", "step_ppo", "tandem")
PUBLIC = {
    "sppo": ("sppo_loss", "sppo_target", "win_rates"),
    "serl": ("parse_instructions", "filter_instruction", "rouge_l", "max_rouge_l", "InstructionPool"),
    "pasodoble": ("extract_question", "extract_answer", "proposer_reward", "DiversityHistory"),
    "step_ppo": ("segment", "step_rewards", "token_rewards", "gae", "outcome_pairs", "process_pairs"),
    "tandem": ("Authorship",),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_name_is_there_and_no_other(recipe):
    package = importlib.import_module(f"recipes.{recipe}")
    assert set(PUBLIC[recipe]) <= set(package.__all__)
    assert all(callable(getattr(package, name)) for name in package.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        package.__getattr__("no_such_name")


def test_a_package_costs_nothing_and_its_functions_need_no_verl():
    imports = "; ".join(f"import recipes.{recipe}" for recipe in RECIPES)
    code = f"import sys; {imports}; print(sorted({{'torch', 'numpy', 'verl', 'ray', 'pandas'}} & set(sys.modules)))"
    names = "; ".join(f"from recipes.{recipe} import *" for recipe in RECIPES if recipe != "tandem")
    code += f"; {names}; print(sorted({{'verl', 'ray', 'vllm', 'transfer_queue'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_rouge_l_is_that_of_the_rouge_score_package():
    from recipes.serl import max_rouge_l, rouge_l

    assert rouge_l("the cat sat on the mat", "the cat lay on a mat") == pytest.approx(2 / 3)
    assert rouge_l("", "a") == max_rouge_l("a", []) == 0.0
    assert max_rouge_l("one two", ["three", "Two, one two!"]) == pytest.approx(0.8)
