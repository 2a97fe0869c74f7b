"""Serving over HTTP: who may ask, and how it begins and ends."""
