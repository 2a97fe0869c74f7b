#!/bin/sh
# Copies a folder to a sandbox: first shows what would be sent, then sends it, then only what has changed.
#
#     sh sync_dry_run.sh [SANDBOX]
# shellcheck disable=SC2016 # The shell of the sandbox expands what is in single quotes.
set -eu
sandbox=${1:-local}
remote=example-sync-$$
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir "$folder/data"
echo one >"$folder/data/a.txt"
echo two >"$folder/data/b.txt"

# For programs, every verb has --json: one object on standard output.
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

echo "would send $(remote-sandbox-mcp push "$folder" "$sandbox:$remote" --dry-run --json | field would_send_files) files"
echo "sent $(remote-sandbox-mcp push "$folder" "$sandbox:$remote" --json | field uploaded_files) files"
echo three >>"$folder/data/b.txt"
echo "sent $(remote-sandbox-mcp push "$folder" "$sandbox:$remote" --json | field uploaded_files) file after a change"

remote-sandbox-mcp exec --sandbox "$sandbox" --cwd "$remote" -- 'cat data/*.txt; rm -r "$PWD"'
