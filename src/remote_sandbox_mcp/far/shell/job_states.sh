#!/bin/sh
# Reports background jobs where there is no Python, their checkpoints and the resources they use: job_look, job_wait,
# job_list. Goes after jobs.sh. The question about the Nth job:
#   RSM_N_ID     the job; or else RSM_N_SESSION: the newest of that name, and RSM_N_LOG: the log it must have, or empty
#   RSM_N_CURSOR the offset to read its log from ("start": where this job began), or else RSM_N_LINES; RSM_N_MOST bytes
#   RSM_N_PATH, RSM_N_COMMAND, RSM_N_CWD   its checkpoint: a file, or what a command prints
#   RSM_N_USAGE  not empty if its use of resources is wanted
# and RSM_LOOKS, how many there are; job_list: RSM_COUNT jobs; job_wait: RSM_TICKS, how many hundredths of a second it
# may take, and RSM_SEEN: a log of another size than that ends the wait.
#
# clock UPTIME EPOCH; jobs COUNT; and for each: N.state, N.why (a word); its order: N.ordered EPOCH TICKS, N.log_start,
# N.id, N.session, N.cwd, N.log, N.command; N.begun UPTIME; N.end ENDING CODE UPTIME PIDS; of its log N.size,
# N.grown EPOCH, N.start OFFSET, N.data; N.saved EPOCH with N.checkpoint, or N.trouble;
# N.usage PROCESSES PAGES TICKS PAGE_SIZE; N.foreign LOG for a job that is not ours but has this log.
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

rs_n=0

begin_looks() {
	settle_jobs || rs_base=/nonexistent
	clock
	rs_epoch=$(date +%s)
	printf 'clock %s %s\n' "$rs_now" "$rs_epoch"
}

# ask NAME: sets rs_asked to that variable of the current question.
ask() {
	eval "rs_asked=\${RSM_${rs_n}_$1-}"
}

say() {
	printf '%s.%s %s\n' "$rs_n" "$1" "$2"
}

# which_file FILE: sets rs_which to device and inode, which identify it.
which_file() {
	rs_which=$(stat -L -c %d:%i "$1" || stat -L -f %d:%i "$1")
} 2>/dev/null

# Sets rs_mtime.
mtime() {
	rs_mtime=$(stat -L -c %Y "$1" || stat -L -f %m "$1")
} 2>/dev/null

job_look() {
	begin_looks
	tell_looks
}

tell_looks() {
	while [ "$rs_n" -lt "$RSM_LOOKS" ]; do
		find_wanted
		describe_job
		rs_n=$((rs_n + 1))
	done
}

find_wanted() {
	ask ID
	rs_id=$rs_asked
	if [ -z "$rs_id" ]; then
		ask SESSION
		newest "$rs_asked"
		rs_id=$rs_newest
		rs_dir=$rs_base/$rs_id
		has_that_log || rs_id=''
	fi
	rs_dir=$rs_base/${rs_id:-none}
	judge
}

# Whether the log that the question names, if any, is this job's.
has_that_log() {
	ask LOG
	[ -n "$rs_asked" ] && [ -n "$rs_id" ] || return 0
	which_file "$rs_dir/log" || rs_which=$(readlink "$rs_dir/log")
	rs_here=$rs_which
	for rs_folder in "${HOME-}" "$(readlink "$rs_dir/cwd")"; do
		locate "$rs_asked" "$rs_folder"
		which_file "$rs_path" || rs_which=$rs_path
		[ "$rs_which" != "$rs_here" ] || return 0
	done
	return 1
}

describe_job() {
	rs_log=$rs_dir/log
	case $rs_state in
	missing) find_foreign ;;
	ended) await_last_line ;;
	esac
	# A job that is about to begin is reported as running.
	[ "$rs_state" != starting ] || rs_state=running
	say state "$rs_state"
	[ -z "$rs_why" ] || say why "$rs_why"
	rs_log_start=0
	tell_record 2>/dev/null
	[ ! -f "$rs_log" ] || tell_log
	ask USAGE
	[ -z "$rs_asked" ] || [ "$rs_state" != running ] || tell_usage
	tell_checkpoint
}

tell_record() {
	while read -r rs_word rs_value; do
		say "$rs_word" "$rs_value"
		[ "$rs_word" != log_start ] || rs_log_start=$rs_value
	done <"$rs_dir/order"
	! read_record || say begun "$rs_begun"
	! read -r rs_end <"$rs_dir/end" || say end "$rs_end"
}

# Waits for the keeper to leave: it writes the last line of the log right after the record of the end.
await_last_line() {
	rs_turns=0
	while [ "$rs_turns" -lt 25 ] && read_record && lives "$rs_keeper" "$rs_keeper_birth"; do
		nap 0.02
		rs_turns=$((rs_turns + 1))
	done
}

# A job that is not ours but has a log: the log's last line says how it ended.
find_foreign() {
	ask ID
	[ -z "$rs_asked" ] || return 0
	ask LOG
	[ -n "$rs_asked" ] || return 0
	locate "$rs_asked" "${HOME-}"
	[ -f "$rs_path" ] && [ -r "$rs_path" ] || return 0
	rs_log=$rs_path rs_state=gone rs_why=foreign
	say foreign "$(printf %s "$rs_log" | coded)"
	rs_last=$(tail -c 64 "$rs_log" | tail -n 1 | tr -d '\r\000')
	case $rs_last in EXIT_CODE=*) rs_last=${rs_last#EXIT_CODE=} ;; *) return ;; esac
	case ${rs_last#-} in '' | *[!0-9]*) return ;; esac
	rs_state=ended rs_why=''
	say end "exited $rs_last 0"
}

# Reports the wanted part of the log, as it was when its size was read.
tell_log() {
	size "$rs_log"
	mtime "$rs_log"
	set -- "$rs_size"
	say size "$1"
	say grown "$rs_mtime"
	ask MOST
	rs_most=${rs_asked:-0}
	ask CURSOR
	if [ -n "$rs_asked" ]; then
		rs_from=$rs_asked
		[ "$rs_from" != start ] || rs_from=$rs_log_start
		# A log that is shorter than what was read was replaced or cut: read it from its beginning.
		[ "$rs_from" -le "$1" ] || rs_from=0
		say start "$rs_from"
		tell_part "$rs_from" "$1" cat
		return
	fi
	ask LINES
	rs_lines=${rs_asked:-0}
	rs_from=$(($1 > rs_most ? $1 - rs_most : 0))
	[ "$rs_lines" -le 0 ] || tell_part "$rs_from" "$1" tail -n "$rs_lines"
}

# tell_part FROM SIZE FILTER...: reports up to rs_most bytes of the log, through a filter.
tell_part() {
	rs_from=$1 rs_count=$(($2 - $1))
	shift 2
	[ "$rs_count" -le "$rs_most" ] || rs_count=$rs_most
	[ "$rs_count" -gt 0 ] || return 0
	say data "$(tail -c "+$((rs_from + 1))" "$rs_log" | head -c "$rs_count" | "$@" | coded)"
}

# Waits until the job has ended, its log has another size, or the time is over.
job_wait() {
	begin_looks >/dev/null
	find_wanted
	rs_until=$((rs_ticks + RSM_TICKS)) rs_rest=4
	while [ "$rs_state" = running ] || [ "$rs_state" = starting ]; do
		size "$rs_dir/log"
		[ "${RSM_SEEN-none}" = none ] || [ "$RSM_SEEN" = "$rs_size" ] || break
		clock
		[ "$rs_ticks" -lt "$rs_until" ] || break
		rest
		judge
	done
	job_look
}

job_list() {
	begin_looks
	for rs_id in $(each_order | sort -k1,1nr -k2,2nr | head -n "$RSM_COUNT" | cut -d ' ' -f 3); do
		rs_dir=$rs_base/$rs_id
		judge
		describe_job
		rs_n=$((rs_n + 1))
	done
	printf 'jobs %s\n' "$rs_n"
}

each_order() {
	for rs_dir in "$rs_base"/job-*; do
		! read -r _ rs_epoch rs_ticks _ <"$rs_dir/order" || printf '%s %s %s\n' "$rs_epoch" "$rs_ticks" "${rs_dir##*/}"
	done
} 2>/dev/null

# Removes the records of all but the newest 300 jobs, unless they run.
prune_jobs() {
	for rs_id in $(each_order | sort -k1,1nr -k2,2nr | tail -n +301 | cut -d ' ' -f 3); do
		rs_dir=$rs_base/$rs_id
		judge
		case $rs_state in running | starting) continue ;; esac
		discard_folder
	done
} 2>/dev/null

# Reports a job's checkpoint: a file, or the output of a command, which may take ten seconds.
tell_checkpoint() {
	ask PATH
	rs_wanted=$rs_asked
	ask COMMAND
	[ -n "$rs_wanted$rs_asked" ] || return 0
	rs_command=$rs_asked
	ask CWD
	if [ -n "$rs_asked" ]; then
		locate "$rs_asked" "${HOME-}"
	else
		rs_path=$(readlink "$rs_dir/cwd") || rs_path=${HOME:-/}
	fi
	if [ -z "$rs_wanted" ]; then
		ask_checkpoint
	else
		locate "$rs_wanted" "$rs_path"
		read_checkpoint
	fi
}

trouble() {
	say trouble "$(printf %s "$1" | coded)"
}

read_checkpoint() {
	if rs_said=$(LC_ALL=C ls -dL "$rs_path" 2>&1 >/dev/null); then
		if [ -d "$rs_path" ]; then
			trouble "$rs_path is a folder; list_remote_files shows what is in it"
		elif [ ! -f "$rs_path" ]; then
			trouble "$rs_path is a pipe, socket or device, not a file"
		elif [ ! -r "$rs_path" ]; then
			trouble 'Permission denied'
		else
			mtime "$rs_path"
			say saved "$rs_mtime"
			say checkpoint "$(tail -c 65536 "$rs_path" | coded)"
		fi
	else
		trouble "${rs_said##*: }"
	fi
}

ask_checkpoint() {
	cd "$rs_path" 2>/dev/null || {
		trouble 'No such file or directory'
		return
	}
	rs_output=$rs_base/.checkpoint-$$
	without_ours "$(command -v setsid)" </dev/null >"$rs_output" 2>&1 &
	rs_group=$!
	clock
	rs_until=$((rs_ticks + 1000)) rs_rest=4
	while born "$rs_group" && [ "$rs_ticks" -lt "$rs_until" ]; do
		rest
		clock
	done
	if born "$rs_group"; then
		hit KILL
		trouble 'the checkpoint command took longer than 10 s'
	else
		tell_output
	fi
	wait "$rs_group" 2>/dev/null
	rm -f "$rs_output"
	cd /
}

tell_output() {
	wait "$rs_group"
	set -- $?
	if [ "$1" = 0 ]; then
		say saved "$rs_epoch"
		say checkpoint "$(tail -c 65536 "$rs_output" | coded)"
	else
		trouble "the checkpoint command ended with $1: $(tail -c 300 "$rs_output")"
	fi
}

# without_ours SETSID: runs the checkpoint's command, with none of our variables in its environment.
without_ours() {
	set -- "$1" "$(command -v bash || echo sh)" -c "$rs_command"
	[ -n "$1" ] || shift
	leave_ours
	exec "$@"
}

tell_usage() {
	members
	rs_count=0 rs_pages=0 rs_used=0
	for rs_pid in $rs_living; do
		read -r rs_row <"/proc/$rs_pid/stat" || continue
		# shellcheck disable=SC2086 # a row of numbers
		set -- ${rs_row##*) }
		rs_count=$((rs_count + 1)) rs_pages=$((rs_pages + ${22})) rs_used=$((rs_used + ${12} + ${13} + ${14} + ${15}))
	done 2>/dev/null
	say usage "$rs_count $rs_pages $rs_used $(getconf PAGESIZE 2>/dev/null || echo 4096)"
}
