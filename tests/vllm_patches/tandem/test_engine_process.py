"""Engines in processes of their own, where only the installed entry point brings the plug-in in."""

import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import vllm_patches

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not any(point.value == "vllm_patches:register" for point in entry_points(group="vllm.general_plugins")),
        reason="the package is not installed: no vllm.general_plugins entry point",
    ),
]

SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

def main():
    task = json.loads(open(sys.argv[1]).read())
    llm = LLM(**task["engine"])
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, extra_args={"tandem": t})
        for _, n, t in task["jobs"]
    ]
    for _ in range(2):
        outputs = llm.generate([{"prompt_token_ids": p} for p, _, _ in task["jobs"]], params, use_tqdm=False)
        written = [(list(o.outputs[0].token_ids), o.outputs[0].authorship_mask) for o in outputs]
        print("WRITTEN " + json.dumps(written), flush=True)
    print("STATS " + json.dumps(llm.collective_rpc("tandem_stats")), flush=True)

if __name__ == "__main__":
    main()
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


def engine_options(models: dict[str, Path], tandem: dict | None = None, **more) -> dict:
    from vllm_patches.tandem.config import engine_arguments

    settings = dict(junior_model=str(models["junior"]), mode="lazy") | (tandem or {})
    options = dict(
        model=str(models["senior"]),
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=384,
        max_num_seqs=16,
        max_num_batched_tokens=48,
        kv_cache_memory_bytes=1 << 27,
        disable_log_stats=True,
    )
    return options | engine_arguments(settings) | more


def run_script(tmp_path: Path, engine: dict, jobs, script: str = SCRIPT) -> subprocess.CompletedProcess:
    task, program = tmp_path / "task.json", tmp_path / "engine.py"
    task.write_text(json.dumps(dict(engine=engine, jobs=[(job.prompt, job.num_tokens, job.tandem) for job in jobs])))
    program.write_text(script)
    done = subprocess.run(
        [sys.executable, str(program), str(task)],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def lines(done: subprocess.CompletedProcess, kind: str) -> list:
    return [json.loads(line.removeprefix(kind + " ")) for line in done.stdout.splitlines() if line.startswith(kind)]


# The training of tandem in CI has an engine in a process of its own.
@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="one worker"),
        pytest.param(dict(tensor_parallel_size=2, num_gpu_blocks_override=40), id="TP=2"),
        pytest.param(dict(enforce_eager=False), id="compiled"),
        pytest.param(dict(enforce_eager=False, tandem=dict(mode="lock_step")), id="compiled-l"),
        # vLLM of torch 2.11 gave a junior with the senior's path the senior's compiled code.
        pytest.param(dict(enforce_eager=False, junior="senior"), id="compiled-twin"),
        pytest.param(
            dict(enforce_eager=False, junior="senior", tandem=dict(mode="lock_step")),
            id="compiled-twin-l",
        ),
        pytest.param(dict(tandem=dict(mode="speculative")), id="speculative"),
    ],
)
def test_the_entry_point_brings_the_decoder_into_every_process(tmp_path, models, jobs, expected_with, more):
    more = dict(more)
    junior, tandem = more.pop("junior", "junior"), more.pop("tandem", None)
    if "num_gpu_blocks_override" not in more:
        jobs = jobs[:8]
    done = run_script(tmp_path, engine_options(models | {"junior": models[junior]}, tandem, **more), jobs)
    wanted = [[written.token_ids, written.mask] for written in expected_with(junior)[: len(jobs)]]
    assert lines(done, "WRITTEN") == [wanted, wanted]
    (stats,) = lines(done, "STATS")
    assert len(stats) == more.get("tensor_parallel_size", 1)
    assert all(worker == stats[0] for worker in stats)
    assert ("num_gpu_blocks_override" in more) <= (stats[0]["resumed_requests"] > 0)


ABORT_SCRIPT = """
import asyncio, json, sys
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

async def write(engine, name, job, kind):
    prompt, num_tokens, tandem = job
    params = SamplingParams(
        temperature=0, max_tokens=num_tokens, ignore_eos=True, extra_args={"tandem": tandem}, output_kind=kind
    )
    async for output in engine.generate({"prompt_token_ids": prompt}, params, name):
        last = output
        if name == "cut" and len(output.outputs[0].token_ids) == 9:
            await engine.abort("cut")
    one = last.outputs[0]
    return one.finish_reason, list(one.token_ids), one.authorship_mask

async def main():
    task = json.loads(open(sys.argv[1]).read())
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**task["engine"]))
    kinds = [("cut", RequestOutputKind.CUMULATIVE), ("whole", RequestOutputKind.FINAL_ONLY)]
    done = await asyncio.gather(*[write(engine, n, j, k) for (n, k), j in zip(kinds, task["jobs"])])
    print("WRITTEN " + json.dumps(done), flush=True)
    engine.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.long
def test_the_mask_of_an_aborted_request_is_recomputed_from_its_tokens(tmp_path, models, jobs, expected, reference):
    done = run_script(tmp_path, engine_options(models), jobs[:2], script=ABORT_SCRIPT)
    ((cut, whole),) = lines(done, "WRITTEN")
    assert cut[0] == "abort"
    assert 9 <= len(cut[1]) < jobs[0].num_tokens
    assert (cut[1], cut[2]) == (expected[0].token_ids[: len(cut[1])], None)
    assert reference.mask_of(cut[1], jobs[0].tandem, jobs[0].prompt) == expected[0].mask[: len(cut[1])]
    assert whole == ["length", expected[1].token_ids, expected[1].mask]


@pytest.fixture(scope="module")
def server(tmp_path_factory, models_without_paragraphs):
    """A lazy engine behind vLLM's OpenAI server; gives its address. No token of its tokenizer ends a paragraph."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    for key, value in engine_options(models_without_paragraphs, served_model_name="tandem").items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, bool):
            command += [flag] if value else ["--no-" + flag.removeprefix("--")]
        elif isinstance(value, list):
            command += [flag, *value]
        else:
            command += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    log = (folder / "server.log").open("w")
    process = subprocess.Popen(command, env=environment(), cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(400):
            assert process.poll() is None, (folder / "server.log").read_text()[-4000:]
            try:
                urllib.request.urlopen(address + "/health", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()


@pytest.fixture(scope="module")
def client(server):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def complete(client):
    def send(job, tandem=None, **more):
        body = dict(ignore_eos=True, return_token_ids=True)
        body["vllm_xargs"] = {"tandem": json.dumps(job.tandem if tandem is None else tandem)}
        body |= more.pop("extra_body", {})
        options = dict(temperature=0, max_tokens=job.num_tokens) | more
        return client.completions.create(model="tandem", prompt=job.prompt, extra_body=body, **options)

    return send


@pytest.fixture(scope="module")
def served_jobs(jobs):
    return [job for job in jobs if job.tandem["selection_strategy"] != "sentence"][:4]


def mask_of(choice) -> list[int]:
    return np.load(io.BytesIO(base64.b64decode(choice.routed_experts))).reshape(-1).astype(int).tolist()


@pytest.mark.long
def test_the_openai_server_writes_the_same_and_returns_the_mask(complete, served_jobs, reference):
    for job in served_jobs:
        answer, written = complete(job), reference.write(job)
        (choice,) = answer.choices
        assert choice.token_ids == written.token_ids
        assert answer.kv_transfer_params["tandem_authorship"] == written.mask
        assert mask_of(choice) == written.mask


@pytest.mark.long
def test_two_choices_have_masks_of_their_own(complete, served_jobs, reference):
    job = served_jobs[0]
    answer = complete(job, tandem={}, n=2, seed=5, temperature=1.0)
    for choice in answer.choices:
        assert mask_of(choice) == reference.mask_of(choice.token_ids, {}, job.prompt, 5 + choice.index)
    assert mask_of(answer.choices[0]) != mask_of(answer.choices[1])
    assert not getattr(answer, "kv_transfer_params", None)


@pytest.mark.long
def test_the_mask_of_a_stream_is_recomputed_from_its_token_ids(complete, served_jobs, reference):
    job = served_jobs[0]
    token_ids = [i for part in complete(job, stream=True) for choice in part.choices for i in choice.token_ids]
    assert token_ids == reference.write(job).token_ids
    assert reference.mask_of(token_ids, job.tandem, job.prompt) == reference.write(job).mask


@pytest.mark.long
def test_faulty_requests_are_answered_with_400_and_the_engine_goes_on(complete, served_jobs, reference):
    import openai

    job = served_jobs[0]
    for faulty, says, more in (
        (dict(prob_senior=3), "prob_senior is 3", {}),
        (dict(resume_len=len(job.prompt) + 1), "resume_len is", {}),
        (dict(word_align="before"), "lock_step mode", {}),
        (dict(selection_strategy="sentence"), "reads sentence boundaries, and no token", {}),
        (dict(chunk_size=10**21), "chunk_size is 1000000000000000000000", {}),
        ({}, "n is 2, and all responses would draw the same author coins", dict(n=2, temperature=1.0)),
    ):
        for stream in (False, True):
            with pytest.raises(openai.APIError, match=says) as refusal:
                for _ in complete(job, tandem=faulty, stream=stream, **more):
                    pass
            # the headers of a stream are out when vLLM checks the request
            assert int(refusal.value.code if stream else refusal.value.status_code) == 400
    assert complete(job).choices[0].token_ids == reference.write(job).token_ids


@pytest.mark.long
def test_the_readmes_two_minutes_run_when_saved_as_a_file(tmp_path, models):
    readme = Path(vllm_patches.__file__).with_name("README.md").read_text()
    snippet = readme.split("## Two minutes", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    for name, model in (("Qwen/Qwen3-1.7B", "senior"), ("Qwen/Qwen3-0.6B", "junior")):
        assert name in snippet
        snippet = snippet.replace(name, str(models[model]))
    (tmp_path / "two_minutes.py").write_text(snippet)
    done = subprocess.run(
        [sys.executable, "two_minutes.py"],
        env=environment() | {"VLLM_CPU_KVCACHE_SPACE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    mask = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert set(mask) == {0, 1}
