"""A serving engine with continuous batching behind an OpenAI-compatible API, as two processes: see README.md."""
