"""SSH machines, on asyncssh: connections, host keys, sessions, SFTP, and machines without python3.

The program that runs commands on the machine is not here: that is far/outpost.
"""
