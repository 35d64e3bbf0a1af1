"""verl's SFT trainer for supervised starts: after a kill it goes on, and where there is only a CPU it runs there.

    torchrun --standalone --nproc_per_node=4 -m recipes.launch.supervised key=value ...

Keys and defaults are those of ``verl.trainer.sft_trainer``; a missing model or data file is refused with one sentence.
verl 0.9 restores a data loader that was saved at the end of an epoch as one that has nothing left: a run resumed there
trains no further epoch and still ends with success (verl issue 7401). Here it trains the epochs that are left.
"""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from recipes.core import compat
from recipes.errors import ConfigError, DataError, LaunchError
from recipes.launch import checks, cluster, cpu, preflight, worker_checks

REFUSED = 2
PROCESS_GROUP_TIMEOUT = timedelta(hours=10)
# As in every scale of the recipes: what the tests run. verl's default is FSDP1.
FSDP2 = "engine.strategy=fsdp2"
CPU_LAYER = (
    "trainer.device=cpu",
    "model.enable_gradient_checkpointing=false",
    "model.use_remove_padding=false",
    "+model.override_config.attn_implementation=sdpa",
    "engine.use_torch_compile=false",
    "engine.dtype=float32",
    "data.num_workers=0",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as one rank of ``torchrun``; the return value is the exit code: 0, or 2 for a refusal."""
    overrides = list(sys.argv[1:] if argv is None else argv)
    try:
        device = cluster.choose_device(overrides, None)
        cluster.set_environment(device)
        if device == "cpu":
            cpu.set_environment(real=False)
        config = compose(overrides, device)
        check(config)
        checks.fall_back_to_sdpa(config, device, ("model",))
        worker_checks.check_ulysses("engine", config.engine, config.model)
        compat.require(compat.SUPERVISED_START)
    except LaunchError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"sft: {' '.join(str(error).split())}", file=sys.stderr)
        return REFUSED
    _train(config, device)
    return 0


def compose(overrides: Sequence[str], device: str):
    """verl's SFT config with :data:`FSDP2`, and on a CPU :data:`CPU_LAYER`, below what was typed.

    Raises:
        ConfigError: Hydra does not know a key, or cannot read a value.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException

    layer = CPU_LAYER if device == "cpu" else ()
    if not any(item.startswith("engine=") for item in overrides):
        layer = (FSDP2, *layer)
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return hydra_compose("sft_trainer_engine", [*layer, *overrides])
    except HydraException as error:
        raise ConfigError(str(error)) from error


def check(config) -> None:
    """Refuse what verl would stumble over: no model, no data, no messages, fewer records than one batch.

    Raises:
        LaunchError: with one sentence.
    """
    preflight.check_model(config.model.path, "model.path")
    preflight.check_writable(config.trainer.default_local_dir, "trainer.default_local_dir")
    checks.check_loggers(config.trainer.logger)
    records = _count_records(config.data, "train_files")
    _count_records(config.data, "val_files")
    if records is None:
        return
    if 0 < config.data.train_max_samples < records:
        records = config.data.train_max_samples
    if records < config.data.train_batch_size:
        raise ConfigError(
            f"data.train_files has {records} records, fewer than one batch of data.train_batch_size="
            f"{config.data.train_batch_size}",
            "data.train_batch_size",
        )


def _count_records(data, key: str) -> int | None:
    """How many records ``data.<key>`` has; None where that is a custom dataset's affair, or the files are remote."""
    own_format, records = data.custom_cls.path is not None, 0
    for name in preflight.data_files(data[key]):
        if name.startswith(preflight.REMOTE_PREFIXES) or (own_format and not name.endswith(".parquet")):
            return None
        file = preflight.open_parquet(Path(name).expanduser())
        records += file.metadata.num_rows
        columns = file.schema_arrow.names
        if not own_format and data.messages_key not in columns:
            raise DataError(f"{name} has no column {data.messages_key!r} (it has {', '.join(columns)})")
    return records


def whole_epoch_trainer() -> type:
    """verl's ``SFTTrainer``, whose next epoch is whole when it resumes where one ended."""
    from verl.trainer.sft_trainer import SFTTrainer

    class WholeEpochSFTTrainer(SFTTrainer):
        def __init__(self, config):
            super().__init__(config)
            if self.resume_global_step and self.resume_global_step % self.steps_per_epoch == 0:
                self._build_dataloader()
                self.ckpt_handler.train_dataloader = self.train_dataloader

    return WholeEpochSFTTrainer


def _train(config, device: str) -> None:
    import torch
    from verl.utils.device import auto_set_device
    from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

    if device == "cpu":
        # verl would name gloo twice, for the host and for the device, which torch refuses.
        torch.distributed.init_process_group("cpu:gloo", timeout=PROCESS_GROUP_TIMEOUT)
    else:
        auto_set_device(config)
        initialize_global_process_group()
    whole_epoch_trainer()(config).fit()
    destroy_global_process_group()


if __name__ == "__main__":
    sys.exit(main())
