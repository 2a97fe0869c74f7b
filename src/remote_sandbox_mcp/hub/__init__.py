"""One process per user that serves all of the user's clients, and the small one that each client starts.

The front copies lines between its client and the hub; connections, jobs and transfers are the hub's. What a client may
do and how it is answered is not decided here, but in mcp_server and app.
"""
