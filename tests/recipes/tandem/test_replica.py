"""The server's hook: what verl would hand to vLLM's command line, read by vLLM's own parser."""

from types import SimpleNamespace

import pytest

from recipes.core.vllm_distribution import alias_vllm_distribution

pytest.importorskip("vllm")
alias_vllm_distribution()

from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

from recipes.errors import ConfigError  # noqa: E402
from recipes.tandem.replica import TandemHttpServer  # noqa: E402
from recipes.tandem.settings import KEY  # noqa: E402


class Server(TandemHttpServer):
    """The hook without the actor around it."""

    def __init__(self, max_num_seqs=1024):
        self.config = SimpleNamespace(max_num_seqs=max_num_seqs)
        self.model_config = SimpleNamespace(local_path="/models/s", lora_rank=0, lora={})


def test_the_engine_gets_what_the_decoder_documents(tmp_path):
    engine_kwargs = {"kv_cache_memory_bytes": 1024, "tandem_config": {"frozen_model": "/models/j", "prob_primary": 0.3}}
    Server()._preprocess_engine_kwargs(engine_kwargs)
    assert "tandem_config" not in engine_kwargs
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = AsyncEngineArgs.from_cli_args(
        parser.parse_args([*build_cli_args_from_config(engine_kwargs), "--model", str(tmp_path)])
    )
    assert parsed.worker_cls == "vllm_patches.tandem.worker.TandemWorker"
    assert parsed.scheduler_cls == "vllm_patches.tandem.scheduler.TandemScheduler"
    assert parsed.additional_config["tandem"] == {"junior_model": "/models/j", "prob_senior": 0.3}
    assert parsed.async_scheduling is False and parsed.kv_cache_memory_bytes == 1024


def test_the_speculative_mode_reaches_vllms_command_line(tmp_path):
    engine_kwargs = {"tandem_config": {"junior_model": "/models/j", "mode": "speculative", "num_draft_tokens": 3}}
    Server()._preprocess_engine_kwargs(engine_kwargs)
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = [*build_cli_args_from_config(engine_kwargs), "--model", str(tmp_path)]
    parsed = AsyncEngineArgs.from_cli_args(parser.parse_args(arguments))
    assert parsed.speculative_config == {
        "method": "draft_model",
        "model": "/models/j",
        "num_speculative_tokens": 3,
    }
    assert parsed.scheduler_cls == "vllm_patches.tandem.speculative.scheduler.SpeculativeScheduler"


def test_the_server_says_which_mode_it_chose_and_why(capsys):
    Server(max_num_seqs=64)._preprocess_engine_kwargs({"tandem_config": {"junior_model": "/models/j"}})
    assert "mode lazy (up to 64 requests run at a time" in capsys.readouterr().out


def test_a_server_without_settings_does_not_start():
    with pytest.raises(ConfigError) as refusal:
        Server()._preprocess_engine_kwargs({})
    assert refusal.value.key == f"{KEY}.junior_model"
