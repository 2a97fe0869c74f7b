"""Commands, shells and Python sessions as values, and how they are written for a shell.

Nothing is run here: services/sessions and the backends do that.
"""
