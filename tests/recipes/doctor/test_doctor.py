"""The doctor against real environments: the installed one, and ones with a real fault put on the import path."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes import plugin
from recipes.doctor import __main__ as doctor
from recipes.doctor import environment, probes
from recipes.doctor.cluster import compare_nodes
from recipes.doctor.environment import FAILURE, NOTICE, OK, Finding

ROOT = Path(__file__).parents[3]


def run_doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "recipes.doctor", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | variables,
        timeout=280,
    )


def install_fake(folder: Path, name: str, version: str, code: str | None) -> None:
    """Put a distribution, and if `code` is given a module of the same name, where PYTHONPATH finds it first."""
    module = name.replace("-", "_")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if code is not None:
        (folder / f"{module}.py").write_text(code)
        (info / "top_level.txt").write_text(module)


@pytest.fixture
def ahead(tmp_path, monkeypatch):
    """A folder that this process and its children search first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def by_item(findings) -> dict[str, Finding]:
    return {finding.item: finding for finding in findings}


@pytest.fixture(scope="module")
def healthy():
    return run_doctor("--json")


def test_the_installed_environment_is_fit(healthy):
    report = json.loads(healthy.stdout)
    failures = [finding for findings in report["nodes"].values() for finding in findings if finding["state"] == FAILURE]
    assert failures == []
    assert report["ok"] is True
    assert healthy.returncode == 0


def test_every_row_of_the_registration_table_is_reported(healthy):
    findings = json.loads(healthy.stdout)["nodes"]["this machine"]
    reported = {(f["section"].removeprefix("registry: "), f["item"]) for f in findings}
    assert {(row.kind, row.name) for row in plugin.TABLE} <= reported


def test_both_lock_files_are_reported(healthy):
    sections = {finding["section"] for finding in json.loads(healthy.stdout)["nodes"]["this machine"]}
    assert {"verl lock", "vllm lock"} <= sections


def test_the_quick_form_answers_without_importing_verl_vllm_or_torch():
    code = (
        "import sys; from recipes.doctor.__main__ import main; code = main(['--quick']);"
        "print(code, sorted({'verl', 'vllm', 'torch', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout + done.stderr
    assert "versions, packages and names: as expected" in done.stderr


def test_a_name_without_its_definition_is_a_failure(monkeypatch):
    rows = (
        plugin.Row("policy_loss", "here", "recipes.doctor.report:render"),
        plugin.Row("policy_loss", "no_attribute", "recipes.doctor.report:no_such_function"),
        plugin.Row("policy_loss", "no_module", "recipes.no_such_room.loss:loss"),
    )
    monkeypatch.setattr(plugin, "TABLE", rows)
    found = by_item(environment.check_names())
    assert {item: finding.state for item, finding in found.items()} == {"no_attribute": FAILURE, "no_module": FAILURE}


def test_a_disabled_plugin_fails_the_command(monkeypatch, capsys):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    monkeypatch.setattr(environment, "quick_survey", lambda: [])
    monkeypatch.setattr(environment, "slow_survey", lambda announce: list(environment.check_plugin()))
    assert doctor.main(["--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["nodes"]["this machine"]
    (finding,) = [finding for finding in findings if finding["item"] == "recipes.plugin"]
    assert finding["state"] == FAILURE
    assert "VERL_USE_EXTERNAL_PLUGINS=none" in finding["detail"]


def test_a_dependency_that_raises_is_reported_with_its_error(ahead):
    (ahead / "wrapt.py").write_text("raise ImportError('wrapt was built for another Python')")
    failures = [finding for finding in environment.check_plugin() if finding.state == FAILURE]
    assert any("wrapt was built for another Python" in finding.detail for finding in failures)


def test_an_unknown_verl_version_is_a_failure(ahead):
    install_fake(ahead, "verl", "0.11.0", None)
    finding = by_item(environment.check_versions())["verl"]
    assert finding.state == FAILURE
    assert "0.11.0" in finding.detail
    assert "pip install 'verl>=0.9.1,<0.10'" in finding.remedy


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.13.0+cpu", OK), ("2.13.1", OK), ("2.11.0+cu130", NOTICE), ("2.12.0", FAILURE), ("2.14.0", FAILURE)],
)
def test_torch_versions(ahead, version, state):
    install_fake(ahead, "torch", version, None)
    assert by_item(environment.check_versions())["torch"].state == state


def test_nothing_to_roll_out_with_is_a_failure_and_sglang_alone_is_not(monkeypatch):
    installed = {}
    monkeypatch.setattr(environment.compat, "installed_version", installed.get)
    (finding,) = environment.check_rollout_engine()
    assert (finding.item, finding.state) == ("vllm", FAILURE)
    assert "pip install" in finding.remedy
    installed["sglang"] = "0.5.12"
    assert {finding.state for finding in environment.check_rollout_engine()} == {NOTICE}


def test_a_torchvision_built_for_another_torch_is_a_failure(ahead):
    install_fake(ahead, "torchvision", "0.28.0", "raise RuntimeError('operator torchvision::nms does not exist')")
    finding = by_item(environment.check_optional_libraries())["torchvision"]
    assert finding.state == FAILURE
    assert "operator torchvision::nms does not exist" in finding.detail
    assert "pip uninstall torchvision" in finding.remedy


@pytest.mark.parametrize(("version", "state"), [("1.12.0", OK), ("1.13.0", FAILURE), ("1.16.0", FAILURE)])
def test_a_trl_that_verl_cannot_import_from_is_a_failure(ahead, version, state):
    from recipes.errors import EnvironmentProblem
    from recipes.launch.config_checks import check_trl

    install_fake(ahead, "trl", version, None)
    finding = by_item(environment.check_optional_libraries())["trl"]
    assert finding.state == state and version in finding.detail
    if state == FAILURE:
        assert "pip install 'trl<1.13'" in finding.remedy
        with pytest.raises(EnvironmentProblem, match="pip install 'trl<1.13'"):
            check_trl()
    else:
        check_trl()


def test_a_library_that_kills_its_process_is_a_failure_not_the_end_of_the_doctor(ahead):
    install_fake(ahead, "torchcodec", "0.14", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    finding = by_item(environment.check_optional_libraries())["torchcodec"]
    assert finding.state == FAILURE
    assert "signal 11" in finding.detail


def test_an_abi_broken_flash_attention_is_a_notice_that_names_the_fallback(ahead):
    install_fake(
        ahead, "flash-attn", "2.8.3", "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda')"
    )
    finding = by_item(environment.check_optional_libraries())["flash-attn"]
    assert finding.state == NOTICE
    assert "undefined symbol" in finding.detail
    assert "sdpa" in finding.detail


def test_another_distribution_that_ships_recipes_is_a_clash(ahead):
    install_fake(ahead, "torchtune", "0.6.1", None)
    (ahead / "torchtune-0.6.1.dist-info" / "top_level.txt").write_text("torchtune\nrecipes\n")
    finding = by_item(environment.check_copies())["recipes"]
    assert finding.state == FAILURE
    assert "torchtune" in finding.detail
    assert "pip uninstall torchtune" in finding.remedy


def test_two_copies_on_the_path_are_a_clash_that_lists_both(ahead):
    (ahead / "reward_fns").mkdir()
    (ahead / "reward_fns" / "__init__.py").touch()
    finding = by_item(environment.check_copies())["reward_fns"]
    assert finding.state == FAILURE
    assert str(ahead / "reward_fns") in finding.detail


def test_the_same_copy_reached_twice_is_no_clash(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(ROOT)
    monkeypatch.syspath_prepend(str(tmp_path / "link"))
    monkeypatch.syspath_prepend(str(ROOT))
    assert by_item(environment.check_copies())["recipes"].state == OK


def test_our_vllm_plugin_shut_out_by_its_allow_list(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "lora_filesystem_resolver")
    monkeypatch.setattr(environment, "run_probe", lambda name: ({"problem": None, "ledger": []}, ""))
    finding = by_item(environment.check_vllm())["vllm_patches"]
    assert finding.state == FAILURE
    assert "VLLM_PLUGINS=lora_filesystem_resolver" in finding.detail


@pytest.mark.parametrize(
    ("driver", "platform", "state", "words"),
    [
        ("driver 470.57.02", "", FAILURE, "NVIDIA devices (driver 470.57.02) that torch 2.13.0 cannot use: too old"),
        ("driver 470.57.02", "cpu", NOTICE, "none: the recipes run on the CPU platform"),
        (None, "", NOTICE, "none: the recipes run on the CPU platform"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_failure(monkeypatch, driver, platform, state, words):
    """The launcher refuses to run there; the doctor called it a machine without an accelerator."""
    report = {"devices": [], "cuda": "13.0", "version": "2.13.0", "why_not": "too old"}
    monkeypatch.setattr(environment, "run_probe", lambda name: (report, ""))
    monkeypatch.setattr(environment.nvidia, "nvidia_driver", lambda: driver)
    monkeypatch.setenv("VERL_PLATFORM", platform)
    finding = by_item(environment.check_machine())["accelerator"]
    assert finding.state == state and words in finding.detail
    assert state == NOTICE or "trainer.device=cpu" in finding.remedy


def test_the_probe_of_torch_says_why_it_finds_no_device(monkeypatch):
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = probes.probe_torch()
    assert report["version"] == torch.__version__ and report["why_not"]
    if torch.version.cuda is None:
        assert report["why_not"] == "it is built for the processor alone"


def test_a_check_that_breaks_is_a_finding_and_the_others_still_report(monkeypatch):
    def broken():
        raise OSError("no such table")

    def sound():
        yield Finding("versions", "verl", OK, "0.9.1")

    for name in ("versions", "rollout_engine", "copies", "names", "plugin", "vllm", "optional_libraries"):
        monkeypatch.setattr(environment, f"check_{name}", broken)
    monkeypatch.setattr(environment, "check_machine", sound)
    findings = environment.survey()
    assert [finding.state for finding in findings].count(FAILURE) == 7
    assert Finding("versions", "verl", OK, "0.9.1") in findings


def test_a_silent_child_process_is_reported(monkeypatch):
    monkeypatch.setattr(probes, "_PROBE_SECONDS", 0.2)
    (ahead_of_time, problem) = probes._run_child("import time; time.sleep(30)")
    assert ahead_of_time == {}
    assert "no answer within" in problem


def test_nodes_that_differ_in_a_version_are_named():
    nodes = {
        "a": [Finding("versions", "verl", OK, "0.9.1 (tested: >=0.9)"), Finding("versions", "ray", OK, "2.60.0")],
        "b": [Finding("versions", "verl", OK, "0.9.0 (tested: >=0.9)"), Finding("versions", "ray", OK, "2.60.0")],
    }
    (finding,) = compare_nodes(nodes)
    assert (finding.item, finding.state) == ("verl", FAILURE)
    assert "0.9.1 on a; 0.9.0 on b" in finding.detail


@pytest.mark.parametrize("address", ["local", "http://127.0.0.1:8265"])
def test_ray_never_starts_a_cluster(monkeypatch, capsys, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert doctor.main(["--ray", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "does not name a running cluster" in report["nodes"]["cluster"][0]["detail"]


CLUSTER = """
import sys, ray
context = ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.mark.e2e
@pytest.mark.long
def test_every_node_of_a_running_cluster_is_examined(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        address = next(line.strip() for line in cluster.stdout if ":" in line)
        done = run_doctor("--ray", "--json", RAY_ADDRESS=address)
    finally:
        cluster.communicate(timeout=60)
    nodes = json.loads(done.stdout)["nodes"]
    assert len(nodes) == 2, nodes
    (node,) = [findings for name, findings in nodes.items() if name != "cluster"]
    assert {"versions", "plug-in", "verl lock"} <= {finding["section"] for finding in node}
    assert done.returncode == (1 if any(finding["state"] == FAILURE for finding in node) else 0)
