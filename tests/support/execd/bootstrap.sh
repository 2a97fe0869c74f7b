#!/bin/sh
# The first process of a sandbox: starts execd, then the entrypoint given as arguments, and passes TERM on to it.
export EXECD_ENVS="${EXECD_ENVS:-/opt/opensandbox/.env}"
touch "$EXECD_ENVS" 2>/dev/null || :
# A sandbox without Python of its own keeps one aside for execd alone.
python=python3
[ ! -x /opt/aside/python3 ] || python=/opt/aside/python3
"$python" -IS /opt/opensandbox/execd &
[ $# -gt 0 ] || set -- sleep infinity
"$@" &
main=$!
trap 'kill -TERM "$main" 2>/dev/null; wait "$main"; exit 0' TERM
wait "$main"
