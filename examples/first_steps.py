"""First steps, as in first_steps.ipynb: a reward, a run, its curve."""

# %% [markdown]
# # First steps
#
# One reward, one training run of a real language model on this machine's CPU, its curve, and two answers to one
# question. `bash examples/install.sh` makes `.venv`; run this in its kernel, or as `python examples/first_steps.py`.
# With `RECIPE=sppo` another method trains. `TOY=1` takes a tiny network and arithmetic.

# %%
import os
import subprocess
import sys
from pathlib import Path

from recipes.evaluation import report
from reward_fns.math import score

os.chdir(next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "examples/quickstart.sh").is_file()))
recipe, toy = os.environ.get("RECIPE", "sppo"), bool(os.environ.get("TOY"))
out = Path(os.environ.get("OUT", "outputs/quickstart")).absolute()

# %% [markdown]
# ## A reward
#
# The answer is what stands in the last closed box. A response that cannot be read scores 0 with a reason. A gold answer
# that cannot be worked with is a Skip: nothing is trained on it.

# %%
for response, gold in ((r"so it is \boxed{\frac{1}{2}}", "0.5"), ("so it is one half", "0.5"), (r"\boxed{3}", "")):
    print(score(response, gold))

# %% [markdown]
# ## A run
#
# SmolLM2-135M counts the letters of a word. After a supervised start `sppo` trains it for six steps. On two cores that
# takes about twenty minutes.

# %%
command = ["bash", "examples/quickstart.sh", *(["--toy"] if toy else []), recipe]
with subprocess.Popen(
    command, env=os.environ | {"USE_PYTHON": sys.executable, "OUT": str(out)}, stdout=subprocess.PIPE, text=True
) as process:
    for line in process.stdout:
        print(line, end="", flush=True)
assert process.returncode == 0

# %% [markdown]
# ## What came out
#
# The last lines above are the held-out accuracy before and after with its interval, and one question with both answers.
# The curve as numbers (the picture is `curve.png` beside the log):

# %%
run = report.read_run(f"{recipe}={out / recipe / 'metrics.jsonl'}")
print(report.table([run], report.default_metrics([run])))

# %% [markdown]
# Next: [which method when](../recipes/README.md), or [the reward in a verl job of your own](use_our_rewards.md).
