"""Tandem decoding: a senior and a frozen junior write each response together inside one vLLM engine."""
