#!/bin/sh
# Edit here, run there: binds a local folder to one of a sandbox. Commands then run over there, on what is here.
#
#     sh workspace.sh [SANDBOX]
# shellcheck disable=SC2016 # The shell of the sandbox expands what is in single quotes.
set -eu
sandbox=${1:-local}
folder=$(mktemp -d)
remote=example-workspace-$$
cd "$folder"
trap 'remote-sandbox-mcp unlink "$folder" >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT

echo 'echo "the sum is $(($1 + $2))" | tee result.txt' >add.sh
remote-sandbox-mcp link "$sandbox:$remote" --yes >/dev/null

# In a linked folder no sandbox has to be named. Standard error says what was sent and what came back.
remote-sandbox-mcp exec -- sh add.sh 1 2 2>/dev/null
echo 'echo "the product is $(($1 * $2))" | tee result.txt' >add.sh
remote-sandbox-mcp exec -- sh add.sh 3 4 2>/dev/null
echo "came back: $(cat result.txt)"

# The folder there stays when a link ends. Outside a linked folder, `exec` starts in the home folder.
cd / && remote-sandbox-mcp exec --sandbox "$sandbox" -- rm -r "$remote"
