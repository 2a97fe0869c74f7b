"""How a process of ours finds the user's hub, starts it, and asks it something; the hub itself is the room `hub`."""
