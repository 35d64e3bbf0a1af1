"""The speculative mode on vLLM's V2 model runner."""
