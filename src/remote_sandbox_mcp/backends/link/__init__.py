"""The near side of the outpost: connects to the program that runs on a machine, and speaks its protocol.

How the bytes get there is not here: backends/ssh, bubblewrap and opensandbox each bring a connection.
"""
