#!/bin/sh
# Runs a command on several sandboxes at once, and acts on what each of them said.
#
#     sh on_several.sh SANDBOX,SANDBOX
set -eu
sandboxes=${1:-local}

remote-sandbox-mcp exec --on "$sandboxes" -- echo ready

# The exit code is 0 if it is 0 everywhere.
if remote-sandbox-mcp exec --on "$sandboxes" -- test -d /no/such/folder >/dev/null 2>&1; then
    echo "all have it"
else
    echo "some do not have it"
fi
