"""Commands, jobs and files where there is no Python: one POSIX sh program, and the classes that speak to it.

How a shell is reached is not here: ssh, opensandbox and command each bring a transport. Some of them also serve files
in a better way, as ssh does over SFTP.
"""
