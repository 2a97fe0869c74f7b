"""Contact with the user's hub: a process of ours finds it, starts it, and asks it a question.

The hub's own process is not here: that is the room hub.
"""
