#!/bin/sh
# Looks at background jobs of a container without Python: job_look, job_wait, job_list. Goes after
# container_job_keeper.sh, before container_checkpoint.sh. What is asked of the Nth job:
#   RSM_N_ID     the job; or else RSM_N_SESSION: the newest of that name, and RSM_N_LOG: its log, where that is meant
#   RSM_N_CURSOR where its log is wanted from ("start": where this job began), or else RSM_N_LINES; RSM_N_MOST bytes
#   RSM_N_PATH, RSM_N_COMMAND, RSM_N_CWD   its checkpoint: a file, or what a command prints
#   RSM_N_USAGE  not empty where its use is wanted
# and RSM_LOOKS, how many there are; job_list: RSM_MOST jobs; job_wait: RSM_TICKS, how many hundredths of a second it may
# take, and RSM_SEEN, where a log of another size than that ends it.
#
# clock UPTIME EPOCH; jobs COUNT; and for each: N.state, N.why (a word); its order: N.ordered EPOCH TICKS, N.log_start,
# N.id, N.session, N.cwd, N.log, N.command; N.begun UPTIME; N.end ENDING CODE UPTIME PIDS; of its log N.size,
# N.grown EPOCH, N.start OFFSET, N.data; N.saved EPOCH with N.checkpoint, or N.trouble;
# N.usage PROCESSES PAGES TICKS PAGE_SIZE; N.foreign where the job is not ours, but its log is there.
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

rs_n=0

begin_looks() {
	settle || rs_base=/nonexistent
	boot
	clock
	rs_epoch=$(date +%s)
	printf 'base %s\nclock %s %s\n' "$rs_base" "$rs_now" "$rs_epoch"
}

# ask NAME: sets rs_asked to what is asked of the job that it is about.
ask() {
	eval "rs_asked=\${RSM_${rs_n}_$1-}"
}

say() {
	printf '%s.%s %s\n' "$rs_n" "$1" "$2"
}

# place PATH FOLDER: sets rs_path to where it is.
place() {
	# shellcheck disable=SC2088 # the tilde that a caller wrote
	case $1 in
	/*) rs_path=$1 ;;
	'~') rs_path=${HOME:-/} ;;
	'~/'*) rs_path=${HOME-}/${1#'~/'} ;;
	*) rs_path=$2/$1 ;;
	esac
}

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
	job_judge
}

# Whether the log that is asked for, if any is, is this job's.
has_that_log() {
	ask LOG
	[ -n "$rs_asked" ] && [ -n "$rs_id" ] || return 0
	rs_here=$(stat -L -c %d:%i "$rs_dir/log" 2>/dev/null || readlink "$rs_dir/log")
	for rs_folder in "${HOME-}" "$(readlink "$rs_dir/cwd")"; do
		place "$rs_asked" "$rs_folder"
		[ "$(stat -L -c %d:%i "$rs_path" 2>/dev/null || echo "$rs_path")" != "$rs_here" ] || return 0
	done
	return 1
}

describe_job() {
	rs_log=$rs_dir/log
	case $rs_state in
	missing) find_foreign ;;
	ended) await_last_line ;;
	esac
	# One that is about to begin is a job all the same.
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
	! job_record || say begun "$rs_begun"
	! read -r rs_end <"$rs_dir/end" || say end "$rs_end"
}

# The last line in the log follows the record of the end at once.
await_last_line() {
	rs_turns=0
	while [ "$rs_turns" -lt 25 ] && job_record && lives "$rs_keeper" "$rs_keeper_birth"; do
		nap 0.02
		rs_turns=$((rs_turns + 1))
	done
}

# A job that is not ours: its end is the last line of its log.
find_foreign() {
	ask ID
	[ -z "$rs_asked" ] || return 0
	ask LOG
	[ -n "$rs_asked" ] || return 0
	place "$rs_asked" "${HOME-}"
	[ -f "$rs_path" ] && [ -r "$rs_path" ] || return 0
	rs_log=$rs_path rs_state=gone rs_why=foreign
	say foreign "$(printf %s "$rs_log" | coded)"
	rs_last=$(tail -c 64 "$rs_log" | tail -n 1 | tr -d '\r\000')
	case $rs_last in EXIT_CODE=*) rs_last=${rs_last#EXIT_CODE=} ;; *) return ;; esac
	case ${rs_last#-} in '' | *[!0-9]*) return ;; esac
	rs_state=ended rs_why=''
	say end "exited $rs_last 0"
}

# The wanted part of the log, as it was when its size was looked at.
tell_log() {
	# shellcheck disable=SC2046 # two numbers
	set -- $(stat -L -c '%s %Y' "$rs_log")
	say size "$1"
	say grown "$2"
	ask MOST
	rs_most=${rs_asked:-0}
	ask CURSOR
	if [ -n "$rs_asked" ]; then
		rs_from=$rs_asked
		[ "$rs_from" != start ] || rs_from=$rs_log_start
		# A log that is shorter than what was read of it is another one.
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

# tell_part FROM SIZE FILTER...
tell_part() {
	rs_from=$1 rs_count=$(($2 - $1))
	shift 2
	[ "$rs_count" -le "$rs_most" ] || rs_count=$rs_most
	[ "$rs_count" -gt 0 ] || return 0
	say data "$(tail -c "+$((rs_from + 1))" "$rs_log" | head -c "$rs_count" | "$@" | coded)"
}

# Until the job has ended, its log is of another size, or the time is over.
job_wait() {
	begin_looks >/dev/null
	find_wanted
	rs_until=$((rs_ticks + RSM_TICKS))
	while [ "$rs_state" = running ] || [ "$rs_state" = starting ]; do
		[ "${RSM_SEEN-none}" = none ] || [ "$(stat -L -c %s "$rs_dir/log" 2>/dev/null)" = "$RSM_SEEN" ] || break
		clock
		[ "$rs_ticks" -lt "$rs_until" ] || break
		nap 0.1
		job_judge
	done
	job_look
}

job_list() {
	begin_looks
	for rs_id in $(each_order | sort -k1,1nr -k2,2nr | head -n "$RSM_MOST" | cut -d ' ' -f 3); do
		rs_dir=$rs_base/$rs_id
		job_judge
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

# The oldest beyond a number, unless they run.
prune_jobs() {
	for rs_id in $(each_order | sort -k1,1nr -k2,2nr | tail -n +301 | cut -d ' ' -f 3); do
		rs_dir=$rs_base/$rs_id
		job_judge
		case $rs_state in running | starting) continue ;; esac
		mv "$rs_dir" "$rs_base/.gone-$$" && rm -rf "$rs_base/.gone-$$"
	done
} 2>/dev/null
