#!/bin/sh
# Starts a background job that writes checkpoints, stops it halfway, and resumes it from its checkpoint.
# With --auto-resume, the watchdog would do the same after a reboot of the machine.
#
#     sh resume_job.sh MACHINE
# shellcheck disable=SC2016 # The shell of the sandbox expands what is in single quotes.
set -eu
# An SSH machine: jobs in the sandbox of this computer end with the process that has it open.
sandbox=$1
name=example-resume-$$

# Counts to 6, and continues where it stopped. Step 4 takes ten minutes the first time.
work='i=$(cat step 2>/dev/null || echo 0); echo "begins at $i"
while [ "$i" -lt 6 ]; do
    i=$((i + 1)); echo "$i" >step.new; mv step.new step; echo "step $i"
    [ "$i" != 3 ] || sleep 600
done; echo done'

remote-sandbox-mcp exec --sandbox "$sandbox" -- mkdir "$name"
remote-sandbox-mcp jobs start --sandbox "$sandbox" --name "$name" --cwd "$name" \
    --checkpoint step --resume "$work" -- "$work" 2>/dev/null

# Other programs wait for a line with wait_background_task; see wait_for_line.py.
until remote-sandbox-mcp jobs logs "$name" | grep -q "step 3"; do sleep 0.2; done
remote-sandbox-mcp jobs stop "$name" >/dev/null
echo "stopped at step $(remote-sandbox-mcp exec --sandbox "$sandbox" --cwd "$name" -- cat step)"

remote-sandbox-mcp jobs resume "$name" >/dev/null
remote-sandbox-mcp jobs wait "$name" >/dev/null
remote-sandbox-mcp jobs logs "$name" | grep -v '^EXIT_CODE='
remote-sandbox-mcp exec --sandbox "$sandbox" -- rm -r "$name"
