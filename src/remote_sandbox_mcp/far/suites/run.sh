#!/bin/sh
# Starts a runner, with the plan put where collect.sh finds it. POSIX sh. Prints nothing of its own.
# $1: the run's place, made by look.sh. $2: the plan. Then the runner's words.

printf '%s\n' "$2" >"$1/plan"
shift 2
exec "$@" 2>&1 </dev/null
