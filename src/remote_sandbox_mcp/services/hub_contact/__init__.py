"""How a process of ours finds the user's hub, starts it, and asks it a question.

The hub's own process is not here: that is the room hub.
"""
