"""The toy world: a tokenizer, a tiny Qwen3 and verl data files, made from scratch on a CPU."""
