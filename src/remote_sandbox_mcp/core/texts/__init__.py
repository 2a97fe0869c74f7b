"""Texts that people and agents read: cut to size, made harmless, with their secrets hidden.

Sentences and fields of results are not here but in views.
"""
