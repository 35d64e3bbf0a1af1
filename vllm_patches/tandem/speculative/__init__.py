"""Tandem decoding as speculative decoding: the junior drafts, the senior verifies what is its own to write."""
