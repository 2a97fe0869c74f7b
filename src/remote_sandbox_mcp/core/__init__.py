"""Values and decisions: pure Python with the standard library only, tested without any machine.

No file, process or network is touched here: far, local, backends and services do that.
"""
