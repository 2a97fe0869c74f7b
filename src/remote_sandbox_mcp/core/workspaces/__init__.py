"""Linked folders as values, and the three-way decision on what moves where.

Nothing is moved here: services/workspaces makes the passes.
"""
