#!/usr/bin/env python3
"""Lists the jobs that have failed, with the end of each log: `--json` of the command line in a script.

python failed_jobs.py
"""

import json
import subprocess


def ask(*words: str) -> dict:
    done = subprocess.run(["remote-sandbox-mcp", *words, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


for job in ask("jobs", "list", "--state", "failed")["tasks"]:
    print(f"{job['tmux_session']} on {job['sandbox']}: exit code {job['exit_code']}")
    shown = ask("jobs", "show", job["tmux_session"], "--sandbox", job["sandbox"])
    for line in shown["log_tail"].splitlines()[-3:]:
        print("   ", line)
