"""SSH machines, on asyncssh."""
