#!/bin/sh
# Keeps one run in a container without Python: starts the command, ends it in time, writes down how it ended, and ends
# whole process groups. Goes after container_runs.sh, which tells what is asked.
# shellcheck disable=SC2034,SC2154 # they read what the others found, and the others what is found here

# Starts the command in a session of its own, and writes down its end.
keep() {
	settle
	born "$$"
	rs_keeper_birth=$rs_birth
	expire &
	rs_timer=$!
	clock
	rs_begun=$rs_now
	become "$0" </dev/null >"$rs_dir/out" 2>"$rs_dir/err" &
	rs_group=$!
	born "$rs_group"
	write_down pid "$rs_group $rs_birth $$ $rs_keeper_birth $rs_begun"
	wait "$rs_group"
	rs_code=$?
	rs_ending=exited
	if [ -s "$rs_dir/ending" ]; then
		read -r rs_ending <"$rs_dir/ending"
		# Who strikes it goes on until all of its group is gone.
		gone_in 5
	fi
	kill "$rs_timer"
	wait "$rs_timer"
	clock
	living
	# As long as there is no room even to overwrite, the run counts as running.
	until write_down end "$rs_ending $rs_code $rs_now$rs_living" || [ ! -d "$rs_dir" ]; do nap 1; done
}

# become SETSID: the command, with nothing of ours in its environment.
become() {
	eval "set -- \"\$1\" $RSM_WORDS"
	if [ -z "$RSM_SHELL" ]; then
		if command -v bash >/dev/null 2>&1; then set -- "$@" bash -c; else set -- "$@" sh -c; fi
	fi
	if [ -n "${RSM_FROM-}" ]; then
		# shellcheck disable=SC2016 # for the shell that runs it
		set -- "$@" '. "$0"' "$rs_dir/command"
	else
		set -- "$@" "$RSM_SCRIPT"
	fi
	eval "$RSM_EXPORTS"
	unset RSM_PROGRAM RSM_VERB RSM_CODED RSM_BASE RSM_ID RSM_KEEP RSM_SCRIPT RSM_FROM RSM_CWD RSM_SHELL RSM_SEEK \
		RSM_EXPORTS RSM_TIMEOUT RSM_WORDS RSM_ANSWER
	exec "$@"
}

expire() {
	# Not TERM: a child that has only just begun still has our trap, and would take it for its own.
	trap 'kill -KILL "${!-}"; exit' TERM
	# Not every sleep knows fractions.
	for rs_pause in "$RSM_TIMEOUT" "$((${RSM_TIMEOUT%.*} + 1))"; do
		sleep "$rs_pause" &
		wait "$!" && break
	done
	read_record && strike timed_out
}

# strike ENDING: TERM, two seconds, KILL for the whole group.
strike() {
	[ -s "$rs_dir/ending" ] || write_down ending "$1"
	hit TERM
	hit CONT
	gone_in 2 || {
		hit KILL
		gone_in 2
	}
}

# One that has only just begun does not lead a group yet.
hit() {
	kill "-$1" "-$rs_group" || kill "-$1" "$rs_group"
} 2>/dev/null

# gone_in SECONDS: waits until nothing of the group lives.
gone_in() {
	clock
	rs_until=$((rs_ticks + $1 * 100))
	living
	while [ -n "$rs_living" ]; do
		clock
		[ "$rs_ticks" -lt "$rs_until" ] || return
		nap 0.05
		living
	done
}

# Sets rs_living to who of the group lives; the dead ones that nobody has collected do not.
living() {
	rs_living=
	kill -0 "-$rs_group" || kill -0 "$rs_group" || return 0
	for rs_file in /proc/[0-9]*/stat; do
		read -r rs_row <"$rs_file" || continue
		# shellcheck disable=SC2086 # a row of numbers
		set -- ${rs_row##*) }
		[ "${3-}" = "$rs_group" ] || [ "${rs_row%% *}" = "$rs_group" ] || continue
		case $1 in Z | X) continue ;; esac
		rs_living="$rs_living ${rs_row%% *}"
	done
} 2>/dev/null
