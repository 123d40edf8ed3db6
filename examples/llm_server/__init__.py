"""An OpenAI-compatible LLM server whose engine calls the CUDA runtime: see README.md."""
