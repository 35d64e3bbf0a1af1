"""The doctor against real environments: the installed one, and ones with a real fault put on the import path."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes import plugin
from recipes.launch import doctor
from recipes.launch.doctor import FAILURE, NOTICE, OK, Finding

ROOT = Path(__file__).parents[3]


def run_doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "recipes.launch.doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | variables, timeout=280)


@pytest.fixture
def ahead(tmp_path, monkeypatch):
    """A folder that this process and its children search first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def fake(ahead):
    """Puts a distribution, and if `code` is given a module of the same name, where it is found first."""

    def install(name: str, version: str, code: str | None = None, ships: str = "") -> None:
        module = name.replace("-", "_")
        info = ahead / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(ships or module)
        if code is not None:
            (ahead / f"{module}.py").write_text(code)

    return install


def quick(item: str) -> Finding:
    (found,) = [finding for finding in doctor.quick_findings() if finding.item == item]
    return found


def only(monkeypatch, *libraries: str) -> dict[str, Finding]:
    """The findings on these libraries; verl, vLLM and torch are left out."""
    monkeypatch.setattr(doctor, "answer", None)
    monkeypatch.setattr(doctor, "LIBRARIES", {name: name.replace("-", "_") for name in libraries})
    child = doctor._child
    monkeypatch.setattr(doctor, "_child", lambda code: ([], "") if "doctor.answer" in code else child(code))
    return {finding.item: finding for finding in doctor.slow_findings()}


def test_the_installed_environment_is_fit_and_everything_is_looked_at():
    done = run_doctor("--json")
    report = json.loads(done.stdout)
    findings = report["nodes"]["this machine"]
    assert [finding for finding in findings if finding["state"] == FAILURE] == []
    assert report["ok"] is True and done.returncode == 0
    seen = {(finding["area"], finding["item"]) for finding in findings}
    assert {("lock file", "verl"), ("lock file", "vllm"), ("plug-in", "verl"), ("machine", "accelerator")} <= seen
    assert any(f"all {len(plugin.TABLE)} names" in finding["detail"] for finding in findings)


def test_the_quick_form_answers_without_importing_verl_vllm_or_torch():
    code = (
        "import sys; from recipes.launch.doctor import main; code = main(['--quick']);"
        "print(code, sorted({'verl', 'vllm', 'torch', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.splitlines()[-2:] == ["All is well.", "0 []"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        ("verl", "0.11.0", FAILURE),
        ("torch", "2.13.0+cpu", OK),
        ("torch", "2.11.0+cu130", NOTICE),
        ("torch", "2.12.0", FAILURE),
        ("torch", "2.14.0", FAILURE),
    ],
)
def test_versions_that_nobody_ran_are_failures_with_a_remedy(fake, name, version, state):
    fake(name, version)
    found = quick(name)
    assert found.state == state and version in found.detail
    assert ("pip install" in found.remedy) == (state == FAILURE)


def test_nothing_to_roll_out_with_is_a_failure_and_sglang_alone_is_not(monkeypatch):
    known, there = doctor.compat.installed_version, {"vllm": None, "sglang": None}
    monkeypatch.setattr(doctor.compat, "installed_version", lambda name: there[name] if name in there else known(name))
    assert quick("vllm").area == "versions" and quick("vllm").state == FAILURE
    there["sglang"] = "0.5.12"
    assert quick("vllm").state == NOTICE


@pytest.mark.parametrize(("version", "refused"), [("1.12.0", False), ("1.13.0", True), ("1.16.0", True)])
def test_a_trl_that_verl_cannot_import_from_is_refused(fake, version, refused):
    from recipes.errors import EnvironmentProblem
    from recipes.launch.checks import check_trl

    fake("trl", version)
    assert [f.state for f in doctor.quick_findings() if f.item == "trl"] == [FAILURE] * refused
    if refused:
        with pytest.raises(EnvironmentProblem):
            check_trl()
    else:
        check_trl()


def test_libraries_that_break_on_import_are_named_with_their_error(fake, monkeypatch):
    """Two for another torch, one of which kills its process, and the one that has a stand-in."""
    fake("torchvision", "0.28.0", "raise RuntimeError('operator torchvision::nms does not exist')")
    fake("torchcodec", "0.14", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    fake("flash-attn", "2.8.3", "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda')")
    found = only(monkeypatch, "torchvision", "torchcodec", "flash-attn")
    assert {name: found[name].state for name in doctor.LIBRARIES} == {
        "torchvision": FAILURE,
        "torchcodec": FAILURE,
        "flash-attn": NOTICE,
    }
    assert "operator torchvision::nms" in found["torchvision"].detail and "signal 11" in found["torchcodec"].detail
    assert "undefined symbol" in found["flash-attn"].detail and "sdpa" in found["flash-attn"].detail


@pytest.mark.long
def test_a_dependency_that_raises_is_reported_with_its_error(ahead):
    (ahead / "wrapt.py").write_text("raise ImportError('wrapt was built for another Python')")
    found, problem = doctor._child("from recipes.launch import doctor; doctor.answer('verl')")
    assert "wrapt was built for another Python" in problem + str(found)


@pytest.mark.long
def test_a_library_that_verl_lacks_is_one_finding(ahead):
    (ahead / "cachetools.py").write_text("raise ModuleNotFoundError('no cachetools')")
    found, _ = doctor._child("from recipes.launch import doctor; doctor.answer('verl')")
    (lost,) = [finding for finding in found if finding.state == FAILURE]
    assert "no cachetools" in lost.detail and "trainer serl" in lost.detail and "agent_loop tandem" in lost.detail


def test_a_silent_child_process_is_reported(monkeypatch):
    monkeypatch.setattr(doctor, "CHILD_SECONDS", 0.2)
    assert doctor._child("import time; time.sleep(30)") == ([], "no answer within 0.2 s")


def test_a_plug_in_that_is_switched_off_is_a_failure(monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    monkeypatch.setenv("VLLM_PLUGINS", "lora_filesystem_resolver")
    found = [finding for finding in doctor.quick_findings() if finding.area == "plug-in"]
    assert [finding.state for finding in found] == [FAILURE, FAILURE]
    assert "VERL_USE_EXTERNAL_PLUGINS=none" in found[0].detail and "VLLM_PLUGINS=lora" in found[1].detail


def test_another_distribution_that_ships_recipes_is_a_clash(fake):
    fake("torchtune", "0.6.1", ships="torchtune\nrecipes\n")
    assert quick("recipes").state == FAILURE and "pip uninstall torchtune" in quick("recipes").remedy


def test_two_copies_on_the_path_are_a_clash_and_the_same_one_twice_is_none(ahead, monkeypatch):
    (ahead / "link").symlink_to(ROOT)
    monkeypatch.syspath_prepend(str(ahead / "link"))
    assert quick("recipes").state == OK
    (ahead / "reward_fns").mkdir()
    (ahead / "reward_fns" / "__init__.py").touch()
    assert quick("reward_fns").state == FAILURE and str(ahead / "reward_fns") in quick("reward_fns").detail


@pytest.mark.parametrize(
    ("driver", "platform", "state"),
    [("driver 470.57.02", "", FAILURE), ("driver 470.57.02", "cpu", NOTICE), (None, "", NOTICE)],
)
def test_a_gpu_that_torch_cannot_use_is_a_failure(monkeypatch, driver, platform, state):
    """The launcher refuses to run there; the doctor called it a machine without an accelerator."""
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(doctor.nvidia, "nvidia_driver", lambda: driver)
    monkeypatch.setenv("VERL_PLATFORM", platform)
    (found,) = [finding for finding in doctor.machine_findings() if finding.item == "accelerator"]
    assert found.state == state and (state == NOTICE or "470.57.02" in found.detail)


def test_a_check_that_breaks_is_a_finding_and_the_others_still_report(monkeypatch):
    monkeypatch.setattr(doctor.compat, "trl_problem", lambda: 1 / 0)
    found = doctor.survey(quick=True)
    assert found[0].item == "python" and found[-1].state == FAILURE and "ZeroDivisionError" in found[-1].detail


def test_nodes_that_differ_in_a_version_are_named():
    nodes = {
        "a": [Finding("versions", "verl", OK, "0.9.1 (tested: >=0.9)"), Finding("versions", "ray", OK, "2.60.0")],
        "b": [Finding("versions", "verl", OK, "0.9.0 (tested: >=0.9)"), Finding("versions", "ray", OK, "2.60.0")],
    }
    (finding,) = doctor.compare_nodes(nodes)
    assert (finding.item, finding.state, finding.detail) == ("verl", FAILURE, "0.9.1 on a; 0.9.0 on b")


@pytest.mark.parametrize("address", ["local", "http://127.0.0.1:8265"])
def test_ray_never_starts_a_cluster(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert doctor.main(["--ray", "--json"]) == 1


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
    assert {"versions", "plug-in", "lock file"} <= {finding["area"] for finding in node}
    assert done.returncode == (1 if any(finding["state"] == FAILURE for finding in node) else 0)
