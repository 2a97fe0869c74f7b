"""Drives the program through the clients that people use: their own programs and libraries, from npm and PyPI."""
