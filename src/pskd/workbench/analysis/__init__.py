"""Observers of training: what may look on while a model is trained."""
