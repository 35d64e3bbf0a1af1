"""Build the supervised records of each role, and write them for the trainers.

Source: PasoDoble, ``generate_sft.py``. The JSON files have its fields; beside them stand an entry for LLaMA-Factory
(sharegpt layout) and a parquet file with a ``messages`` column for verl's SFT trainer.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.core.files import replacing, write_json
from recipes.pasodoble.parsing import extract_answer, extract_question
from recipes.pasodoble.prompts import THINK, Messages

Record = dict[str, Any]


def with_thinking(completion: str) -> str:
    """The completion as the assistant's turn, starting with the ``<think>`` that the prompt held."""
    return completion if completion.startswith(THINK) else f"{THINK}\n{completion}"


def proposer_record(prompt: Messages, completion: str, judge_text: str, knowledge: str) -> Record:
    """A proposal whose answer the judge confirmed."""
    return {
        "problem": extract_question(completion),
        "response": with_thinking(completion),
        "solution": extract_answer(completion),
        "solver_gpt_response": judge_text,
        "solver_gpt_pred": extract_answer(judge_text),
        "level": "",
        "is_proposer_answer_correct": 1,
        "is_valid": 1,
        "knowledge": knowledge,
        "conversations": [*prompt, {"role": "assistant", "content": with_thinking(completion)}],
    }


def solver_record(prompt: Messages, completion: str, proposal: Record) -> Record:
    """A solution of a kept proposal whose answer equals the judge's."""
    record = proposal | {
        "response": with_thinking(completion),
        "is_solver_answer_correct": 1,
        "conversations": [*prompt, {"role": "assistant", "content": with_thinking(completion)}],
    }
    del record["is_proposer_answer_correct"]
    return record


def write_dataset(folder: Path, name: str, records: Sequence[Record]) -> None:
    """Write ``name.json`` for LLaMA-Factory and ``name.parquet`` for verl."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_json(folder / f"{name}.json", list(records))
    turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    messages = [[_encodable(message) for message in record["conversations"]] for record in records]
    with replacing(folder / f"{name}.parquet") as partial:
        pq.write_table(pa.table({"messages": pa.array(messages, pa.list_(turn))}), partial)


def write_dataset_info(folder: Path, names: Sequence[str]) -> None:
    """Enter the datasets into ``dataset_info.json``, which LLaMA-Factory reads; other entries stay."""
    path = folder / "dataset_info.json"
    info = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_json(path, info | {name: _llama_factory_entry(f"{name}.json") for name in names})


def _llama_factory_entry(file_name: str) -> dict[str, Any]:
    return {
        "file_name": file_name,
        "formatting": "sharegpt",
        "columns": {"messages": "conversations"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }


def _encodable(message: dict[str, str]) -> dict[str, str]:
    # a lone surrogate from a broken endpoint has no place in parquet
    return {key: value.encode("utf-8", "replace").decode("utf-8") for key, value in message.items()}
