"""Let verl's own dataset read the first rows of a run's files, before Ray starts."""

import contextlib
import io
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.errors import DataError
from recipes.launch.preflight import REMOTE_PREFIXES, data_files, local_tokenizer

ROWS = 256  # looked at in a data file


def check_prompts(config: DictConfig, train_rows: int) -> None:
    """Let verl's own dataset read the first rows with the model's tokenizer, where both are here.

    It drops a row that it cannot render or that is too long; with fewer than `train_rows` a run fails after minutes.

    Raises:
        DataError: the files cannot be read together, or too few rows are kept; with why.
    """
    if (tokenizer := local_tokenizer(config.actor_rollout_ref.model.path)) is None:
        return
    for key, least in (("train_files", train_rows), ("val_files", 1)):
        files = data_files(config.data[key])
        if any(file.startswith(REMOTE_PREFIXES) for file in files):
            continue
        looked, kept, why = _kept_rows(config.data, files, tokenizer, f"data.{key}")
        if not kept:
            raise DataError(f"data.{key}: verl leaves out each of the first {looked} rows: {why}")
        # A file of more rows than were looked at may have the others further on.
        if kept < least and looked < ROWS:
            left_out = f" (it leaves out {looked - kept}: {why})" if kept < looked else ""
            raise DataError(f"data.{key}: verl keeps {kept} rows{left_out}, and a step takes {least}")


def _kept_rows(data: DictConfig, files: list[str], tokenizer: Any, key: str) -> tuple[int, int, str]:
    """How many of the first rows there are, how many verl keeps, and why it would leave one out."""
    import datasets
    from verl.utils.dataset.rl_dataset import get_dataset_class

    # Resolved while it still hangs in the whole config, of which its values may be taken.
    resolved = OmegaConf.to_container(data, resolve=True)

    def read(**changes: Any) -> Any:
        settings = OmegaConf.merge(resolved, {"filter_overlong_prompts_workers": 1, "shuffle": False}, changes)
        reader = get_dataset_class(settings)
        return reader(data_files=files, tokenizer=tokenizer, processor=None, config=settings, max_samples=ROWS)

    datasets.disable_progress_bars()
    try:
        # verl prints a traceback for each row that it leaves out.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            every, short_enough = read(filter_overlong_prompts=False), read()
            prompt = every[0]["raw_prompt"]
    except Exception as error:  # whatever pyarrow, datasets or verl raises says what is wrong with the files
        message = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"{key}: verl's dataset cannot read {', '.join(files)}: {message}") from error
    finally:
        datasets.enable_progress_bars()
    why = f"longer than data.max_prompt_length={data.max_prompt_length} tokens"
    try:
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
    except Exception as error:  # jinja's, or transformers' where there is no template
        why = " ".join(str(error).split())[:200] or type(error).__name__
        if not getattr(tokenizer, "chat_template", None):
            why = "the tokenizer has no chat template: take an instruct model, or a tokenizer with one"
    return len(every), len(short_enough), why
