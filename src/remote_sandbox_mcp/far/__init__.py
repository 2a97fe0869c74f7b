"""Programs that run on the other side: standard library only, Python 3.6 or POSIX sh; sent there as text.

Nothing here runs on this computer, except program.py, which packs them; the near side is in backends and services.
"""
