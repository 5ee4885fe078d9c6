"""Sentence pairs: where they come from, the BPE tokenizer trained on them, and batches of about as many tokens each."""
