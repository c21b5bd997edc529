"""Tiny random models, made on the spot: configuration, tokenizer and weights, nothing downloaded."""
