"""Look at every file a run will need before Ray starts: model folder, parquet files, output folder."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from recipes.errors import ConfigError, DataError, MissingFileError
from recipes.launch.composition import flatten

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
WEIGHT_SUFFIXES = (".safetensors", ".bin")
REMOTE_PREFIXES = ("hdfs://", "s3://", "gs://")


def looks_local(path: str) -> bool:
    """Whether a model path can only mean a folder: absolute, relative with a dot, or not of the form owner/name."""
    return path.startswith(("/", ".", "~")) or path.count("/") != 1 or Path(path).exists()


def check_model(path: str | None, key: str, *, offline_is_fatal: bool = True, hint: str = "") -> None:
    """Refuse a model that cannot be loaded; `hint` says what makes a folder that is not there.

    Raises:
        ConfigError: no path is set.
        MissingFileError: the folder, its config, tokenizer or weights are missing, or the hub does not have the model.
    """
    if not path:
        raise ConfigError(f"{key} is not set: give a Hugging Face model folder or a hub id", key)
    if path.startswith(REMOTE_PREFIXES):
        return
    if looks_local(path):
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise MissingFileError(
                f"{key}={path} does not exist{hint or ': give a Hugging Face model folder or a hub id'}"
            )
        if not (folder / "config.json").is_file():
            raise MissingFileError(f"{key}={path} holds no config.json: it is not a Hugging Face model folder")
        try:
            json.loads((folder / "config.json").read_text())
        except ValueError as error:
            raise DataError(f"{folder / 'config.json'} is not JSON: {error}") from error
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise MissingFileError(f"{key}={path} holds no tokenizer (none of {', '.join(TOKENIZER_FILES)})")
        if not any(file.suffix in WEIGHT_SUFFIXES for file in folder.iterdir()):
            raise MissingFileError(f"{key}={path} holds no weights (*.safetensors or *.bin)")
        return

    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(path, "config.json"), str):
        return
    try:
        hf_hub_download(path, "config.json", etag_timeout=10)
    except RepositoryNotFoundError as error:
        raise MissingFileError(f"{key}={path} is neither a folder here nor a model on the hub") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if offline_is_fatal:
            raise MissingFileError(
                f"{key}={path} is neither a folder here nor in the hub's cache, and the hub cannot be reached"
            ) from error


def expand_home(config: DictConfig) -> None:
    """Write out `~` in every value of a config, once for all who read it: verl and its workers take it for a name."""
    for key, value in flatten(config).items():
        if isinstance(value, str) and value.startswith("~"):
            OmegaConf.update(config, key, os.path.expanduser(value))
        elif isinstance(value, list) and any(str(item).startswith("~") for item in value):
            OmegaConf.update(config, key, [os.path.expanduser(item) for item in value])


def make_paths_absolute(config: DictConfig) -> None:
    """Write out relative paths: workers of a cluster that was running before stand in the folder it was started in."""

    def absolute(key: str, value: Any) -> Any:
        if not isinstance(value, str) or not value or "://" in value:
            return value
        is_here = ("/" in value or "." in value) and os.path.exists(value)
        return os.path.abspath(value) if is_here or key.endswith("_dir") else value

    for key, value in flatten(config).items():
        new = [absolute(key, item) for item in value] if isinstance(value, list) else absolute(key, value)
        if new != value:
            OmegaConf.update(config, key, new)


def local_tokenizer(path: str) -> Any:
    """The tokenizer of a model that is here; None where it is not, or cannot be loaded, which verl will say."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def check_rendering(tokenizer: Any, messages: list[dict[str, str]], what: str) -> None:
    """Refuse messages that a chat template does not take, as a system role; verl would meet it at the first prompt.

    Raises:
        ConfigError: with the template's own words.
    """
    try:
        tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    except Exception as error:  # jinja's
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigError(f"{what}: the chat template takes no messages of {roles}: {error}") from error


def check_vocabulary(path: str, policy: str, key: str) -> None:
    """Refuse a model that would read the policy's token ids as other words; models that are not here are left out.

    Raises:
        ConfigError: the vocabularies differ; with a token that does.
    """
    tokenizers = [local_tokenizer(one) for one in (path, policy)] if path != policy else [None]
    if None in tokenizers:
        return
    # A token that one of them alone has, as a pad token, is no other word.
    own, theirs = ({number: token for token, number in one.get_vocab().items()} for one in tokenizers)
    if differing := [number for number in own.keys() & theirs.keys() if own[number] != theirs[number]]:
        number = min(differing)
        raise ConfigError(
            f"{key}={path} has another vocabulary than the policy ({policy}), whose token ids it would read as other "
            f"words: id {number} is {own[number]!r} there and {theirs[number]!r} here",
            key,
        )


def made_by(path: str | None, prepare: Mapping[str, str]) -> str:
    """What to add to a refusal of a file that is not there: the command that makes it, where a recipe knows one."""
    return next((f": {command} makes it" for part, command in prepare.items() if part in str(path)), "")


def data_files(value: object) -> list[str]:
    """``data.train_files`` as a list: verl takes one path or a list of them."""
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list | tuple | ListConfig) else [str(value)]


def check_data(files: list[str], key: str, *, prompt_key: str, prepare: Mapping[str, str] | None = None) -> None:
    """Refuse data verl would stumble over after minutes: no file, no row, no column, no gold answer.

    `prepare` is a recipe's: part of a path, and the command that makes what is there.

    Raises:
        ConfigError: no file is set. MissingFileError: a file is not there. DataError: it is not what verl reads.
    """
    if not files:
        raise ConfigError(f"{key} is not set: give a parquet file in verl's format", key)
    for name in files:
        if name.startswith(REMOTE_PREFIXES):
            continue
        path = Path(name).expanduser()
        if not path.is_file():
            fault = "is a folder, and verl reads files" if path.is_dir() else "does not exist"
            raise MissingFileError(f"{key}: {name} {fault}{made_by(name, prepare or {})}")
        if path.suffix == ".parquet":
            _check_parquet(path, prompt_key)
        elif path.suffix in (".json", ".jsonl"):
            if path.stat().st_size == 0:
                raise DataError(f"{key}: {name} is empty")
        else:
            raise DataError(f"{key}: {name} is neither .parquet nor .json(l), which is what verl reads")


def open_parquet(path: Path):
    """A parquet file that has rows, as pyarrow's ``ParquetFile``.

    Raises:
        MissingFileError: it is not there. DataError: it cannot be read, or has no rows.
    """
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise MissingFileError(f"{path} does not exist")
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable parquet file: {str(error).splitlines()[0]}") from error
    if file.metadata.num_rows == 0:
        raise DataError(f"{path} has no rows")
    return file


def _check_parquet(path: Path, prompt_key: str) -> None:
    file = open_parquet(path)
    columns = file.schema_arrow.names
    for column in (prompt_key, "data_source", "reward_model"):
        if column not in columns:
            raise DataError(
                f"{path} has no column {column!r} (it has {', '.join(columns)}); verl's format is {prompt_key} (chat "
                "messages), data_source, reward_model (with ground_truth), extra_info"
            )
    first = next(file.iter_batches(batch_size=1, columns=[prompt_key, "reward_model"])).to_pylist()[0]
    messages = first[prompt_key]
    if not (isinstance(messages, list) and messages and isinstance(messages[0], dict) and "content" in messages[0]):
        raise DataError(
            f"{path}: column {prompt_key!r} must hold chat messages, [{{role, content}}, ...], found {messages!r:.80}"
        )
    if not isinstance(first["reward_model"], dict) or "ground_truth" not in first["reward_model"]:
        raise DataError(
            f"{path}: column 'reward_model' must hold {{style, ground_truth}}, found {first['reward_model']!r:.80}"
        )


def check_golds(files: list[str], key: str) -> None:
    """Refuse local parquet files with a row without a gold answer, which would count as answered wrongly.

    Files that are not there or not parquet are left to `check_data`.

    Raises:
        DataError: naming the first such row, counted from 0.
    """
    for name in files:
        path = Path(name).expanduser()
        if name.startswith(REMOTE_PREFIXES) or path.suffix != ".parquet" or not path.is_file():
            continue
        file = open_parquet(path)
        if "reward_model" not in file.schema_arrow.names:
            continue
        before = 0
        for batch in file.iter_batches(columns=["reward_model"]):
            for number, row in enumerate(batch.column(0).to_pylist(), before):
                gold = row.get("ground_truth") if isinstance(row, dict) else None
                if gold is None or not str(gold).strip():
                    raise DataError(
                        f"{key}: row {number} of {name} has no gold answer (reward_model.ground_truth) and would count "
                        "as answered wrongly: fill it in, or remove the row"
                    )
            before += batch.num_rows


def check_writable(directory: str, key: str) -> None:
    """Refuse an output folder that cannot be written before the first checkpoint finds out."""
    path = Path(directory).expanduser()
    while not path.exists():
        path = path.parent
    try:
        # Permission bits say nothing to root, nor of a file system that is mounted read-only or full.
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
    except OSError as error:
        raise MissingFileError(f"{key}={directory} cannot be written: {error.strerror} in {path}") from error


def check_run(config: DictConfig, prepare: Mapping[str, str], *, offline_is_fatal: bool = True) -> None:
    """Every check of this module on a composed config."""
    policy, key = config.actor_rollout_ref.model.path, "actor_rollout_ref.model.path"
    check_model(policy, key, offline_is_fatal=offline_is_fatal, hint=made_by(policy, prepare))
    if config.critic.enable:
        critic = config.critic.model.path
        hint = made_by(critic, prepare)
        check_model(critic, "critic.model.path", offline_is_fatal=offline_is_fatal, hint=hint)
        check_vocabulary(critic, policy, "critic.model.path")
    prompt_key = config.data.prompt_key
    check_data(data_files(config.data.train_files), "data.train_files", prompt_key=prompt_key, prepare=prepare)
    check_data(data_files(config.data.val_files), "data.val_files", prompt_key=prompt_key, prepare=prepare)
    check_writable(config.trainer.default_local_dir, "trainer.default_local_dir")
