"""A critic loads with the attention that its config names, in every process of a run and on every platform."""

import json
import os
import subprocess
import sys
import types

import pytest
import torch

from recipes.core import critic

LOAD = """
import json, sys
import torch, transformers, verl.utils.model as model
config = transformers.AutoConfig.from_pretrained(sys.argv[1], attn_implementation="sdpa")
found = {"file": model.load_valuehead_model.__code__.co_filename}
found["on_cpu"] = "recipes.core.cpu_patches" in sys.modules
try:
    critic = model.load_valuehead_model(sys.argv[1], torch.float32, config, False)
except (RuntimeError, ImportError, ValueError) as error:
    found["error"] = str(error)
else:
    rows = critic(torch.arange(6)[None]).logits
    found |= {"class": type(critic).__name__, "attention": critic.config._attn_implementation, "values": rows.tolist()}
print("RESULT" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, num_labels=1,
    )  # fmt: skip
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("classifier")
    model = transformers.Qwen3ForTokenClassification(config).eval()
    model.save_pretrained(folder)
    return folder, model(torch.arange(6)[None]).logits


def load(folder, **environment):
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_ADDRESS"))}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)],
        env=cleared | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "RESULT" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.split("RESULT")[1].splitlines()[0])


@pytest.mark.timeout(300)
def test_off_the_cpu_platform_too_a_critic_loads_without_flash_attention(classifier):
    folder, values = classifier
    found = load(folder, VERL_DUETS_SYNC_TIMEOUT="60")
    assert found["file"] == critic.__file__ and not found["on_cpu"]
    assert (found["class"], found["attention"]) == ("Qwen3ForTokenClassification", "sdpa")
    torch.testing.assert_close(torch.tensor(found["values"]), values)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_other_verl_jobs_keep_upstream_s_loader(classifier):
    assert load(classifier[0])["file"].endswith("verl/utils/model.py")


@pytest.mark.parametrize("attention", [None, "flash_attention_2"])
def test_flash_attention_is_left_to_upstream(attention):
    module = types.SimpleNamespace(load_valuehead_model=lambda *arguments: arguments)
    for _ in range(2):
        critic.load_with_configured_attention(module)
    config = types.SimpleNamespace(_attn_implementation=attention)
    assert module.load_valuehead_model("path", torch.float32, config, False) == ("path", torch.float32, config, False)
