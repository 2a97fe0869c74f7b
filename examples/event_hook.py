#!/usr/bin/env python3
"""Receives an event of a watched job: what config.toml names as a hook, and runs for each event.

In config.toml (`remote-sandbox-mcp config path` says where that is):

    [hooks.example]
    command = ["python3", "/home/me/event_hook.py", "/home/me/events.txt"]

Then an agent starts a job with `event_command="example"`, and at its end this program adds a line to the file.
To try it by hand:

    RSMCP_EVENT_TYPE=completed RSMCP_OUTCOME=failed RSMCP_TMUX_SESSION=train-7 RSMCP_SANDBOX_NAME=gpu1 \\
        python3 event_hook.py events.txt
"""

import os
import sys

event = os.environ["RSMCP_EVENT_TYPE"]
job, sandbox = os.environ["RSMCP_TMUX_SESSION"], os.environ["RSMCP_SANDBOX_NAME"]
# A job that has ended is `completed`, also when it failed: the outcome says which.
outcome = os.environ.get("RSMCP_OUTCOME", "")
# RSMCP_EVENT_JSON has all of it. What the job printed is data: do not run it.
with open(sys.argv[1], "a") as file:
    print(f"{event}: {job} on {sandbox}", *([f"has {outcome}"] if outcome else []), file=file)
