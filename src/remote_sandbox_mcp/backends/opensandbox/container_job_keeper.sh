#!/bin/sh
# Keeps one job of a container without Python, and ends it: job_keep, job_stop, job_strike. Goes after
# container_jobs.sh, which tells what is asked and what is written down.
#   RSM_GRACE    job_stop: hundredths of a second between TERM and KILL; RSM_TICKS: how many of them may be waited
# job_stop answers as job_look does.
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

# Starts the command in a session of its own, and writes down its end.
job_keep() {
	settle
	boot
	born "$$"
	rs_keeper_birth=$rs_birth
	ln -s "$$ $rs_keeper_birth" "$rs_dir/claim" || exit
	clock
	rs_begun=$rs_now
	job_become "$0" </dev/null >>"$rs_dir/log" 2>&1 &
	rs_group=$!
	born "$rs_group"
	rs_group_birth=$rs_birth
	write_down pid "$rs_group $rs_group_birth $$ $rs_keeper_birth $rs_begun $rs_boot"
	echo begun
	exec >/dev/null
	# A keeper must not hold a folder that somebody wants to unmount.
	cd /
	wait "$rs_group"
	conclude "$?"
}

# job_become SETSID: the command, with nothing of ours in its environment but the job's name.
job_become() {
	RSMCP_JOB_ID=$RSM_ID
	export RSMCP_JOB_ID
	unset RSM_SESSION RSM_LOG RSM_SHOWN RSM_INSTEAD
	become "$1"
}

# conclude CODE
conclude() {
	rs_ending=exited
	if is_struck; then
		rs_ending=stopped
		while is_being_struck; do nap 0.05; done
	fi
	rs_living=''
	[ "$rs_ending" = exited ] || members
	clock
	# As long as there is no room even to overwrite, the job counts as running.
	until write_down end "$rs_ending $1 $rs_now$rs_living" || [ ! -d "$rs_dir" ]; do nap 1; done
	last_line "$1"
}

# The last line of the log, for people and for tools that read it there.
last_line() {
	rs_break=''
	[ ! -f "$rs_dir/log" ] || [ -z "$(tail -c 1 "$rs_dir/log")" ] || rs_break='\n'
	printf '%bEXIT_CODE=%s\n' "$rs_break" "$1" >>"$rs_dir/log"
} 2>/dev/null

# signal_all NAME
signal_all() {
	members
	[ -n "$rs_living" ] || return 0
	kill "-$1" "-$rs_group"
	for rs_pid in $rs_strays; do kill "-$1" "$rs_pid"; done
} 2>/dev/null

# none_in TICKS: waits until nobody of the job lives.
none_in() {
	clock
	rs_until=$((rs_ticks + $1))
	members
	while [ -n "$rs_living" ]; do
		clock
		[ "$rs_ticks" -lt "$rs_until" ] || return
		nap 0.05
		members
	done
}

job_stop() {
	begin_looks
	find_wanted
	rs_apart=$(command -v setsid)
	clock
	rs_limit=$((rs_ticks + RSM_TICKS))
	while [ "$rs_state" = running ] || [ "$rs_state" = starting ]; do
		if [ "$rs_state" = running ] && ! is_being_struck; then strike_apart; fi
		nap 0.05
		job_judge
		clock
		[ "$rs_ticks" -lt "$rs_limit" ] || break
	done
	describe_job
}

# In a session of its own: what was begun goes on when the line ends.
strike_apart() {
	# shellcheck disable=SC2016 # for the shell that runs it
	RSM_VERB=job_strike RSM_BASE=$rs_base RSM_ID=${rs_dir##*/} "$rs_apart" sh -c 'eval "$RSM_PROGRAM"' \
		</dev/null >/dev/null 2>&1 &
	rs_turns=0
	until is_struck || [ "$rs_turns" -ge 40 ]; do
		nap 0.05
		rs_turns=$((rs_turns + 1))
	done
}

# TERM, the grace, KILL.
job_strike() {
	settle
	! is_being_struck && job_record || exit
	born "$$"
	# The pid before the mark: whoever sees the mark looks for us.
	printf '%s\n' "$$ $rs_birth" 1<>"$rs_dir/stop"
	chmod 4600 "$rs_dir/stop"
	signal_all TERM
	signal_all CONT
	none_in "$RSM_GRACE" || kill_all
	lives "$rs_keeper" "$rs_keeper_birth" || [ -s "$rs_dir/end" ] || [ -n "$rs_living" ] || conclude_for_keeper
}

kill_all() {
	rs_turns=0
	until signal_all KILL && none_in 20 || [ "$rs_turns" -ge 25 ]; do
		rs_turns=$((rs_turns + 1))
	done
}

conclude_for_keeper() {
	clock
	write_down end "stopped 143 $rs_now"
	last_line 143
}
