"""Tandem decoding over two ordinary engines, the junior behind an OpenAI-compatible endpoint."""
