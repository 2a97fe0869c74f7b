#!/bin/sh
# Runs commands where there is no Python: hello, start, look, stop, forget, bring, discard. Goes after place.sh.
#   RSM_ID       the run, which is the name of its folder
#   RSM_IDS      forget: runs whose folders may go
#   RSM_KEEP     how many bytes of each stream come back from each end
#   RSM_SCRIPT   start: what the shell runs, or RSM_FROM: a file that holds it (discard: that is not needed any more)
#   RSM_DATA     bring: text for a file of the name RSM_FROM
#   RSM_CWD      start: the folder, empty for home
#   RSM_SHELL    start: the program that must be there, empty for bash or else sh; RSM_SEEK: where to find it, or empty
#   RSM_EXPORTS  start: an export command for the command's variables, or empty
#   RSM_LIMIT    start: hundredths of a second that it may take
#   RSM_ONLY_IN  start: the place in which an earlier start was tried, or empty
#   RSM_REVOKE   stop: not empty where a run that is not there must never start
#   RSM_WORDS    start: the shell's words (behind env, and what cannot be exported); the script follows as the last one
#
# start says `claimed` when it has begun, and then every two seconds `beat BYTES TEXT` (how much was printed, and the
# end of it). A report: place; state (running, ended, lost, missing, refused); why, where it was refused or lost; base;
# begun and now, in seconds of the same clock; end; for out and err their size, and their bytes: all of them, or as many
# as are kept from each end.
#
# A run's folder also has: out and err; what overflows them (.old, .new, .gone: bytes dropped); their pipes; ending (who
# strikes it says why). Beside it is ID.never, where a run was revoked: whoever makes the one looks for the other.
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

rs_block=65536
rs_largest=67108864
rs_segment=4194304

hello() {
	if settle; then
		place
		printf 'base %s\nplace %s\n' "$rs_base" "$rs_place"
		(prune </dev/null >/dev/null 2>&1 &)
	fi
	tell home "${HOME:-/}"
}

refuse() {
	rm -f "${RSM_FROM-}"
	echo 'state refused'
	tell why "$1"
	exit
}

# measure NAME: sets rs_size to what its file holds and rs_total to all that there was.
measure() {
	rs_total=0
	[ ! -s "$rs_dir/$1.gone" ] || read -r rs_total <"$rs_dir/$1.gone"
	for rs_part in "$1.old" "$1.new" "$1"; do
		rs_size=0
		[ ! -s "$rs_dir/$rs_part" ] || size "$rs_dir/$rs_part"
		rs_total=$((rs_total + rs_size))
	done
}

# stream NAME: what is still growing is told as it was when it was measured.
stream() {
	measure "$1"
	[ "$rs_total" -gt 0 ] || return 0
	printf '%s.size %d\n%s.data ' "$1" "$rs_total" "$1"
	if [ "$rs_total" -le "$((2 * RSM_KEEP))" ] && [ "$rs_total" -eq "$rs_size" ]; then
		head -c "$rs_total" "$rs_dir/$1"
	else
		head -c "$((rs_size < RSM_KEEP ? rs_size : RSM_KEEP))" "$rs_dir/$1"
		last_bytes "$1" "$((rs_total - RSM_KEEP < RSM_KEEP ? rs_total - RSM_KEEP : RSM_KEEP))"
	fi | coded
	echo
}

# last_bytes NAME COUNT
last_bytes() {
	if [ "$rs_total" -eq "$rs_size" ]; then
		tail -c "+$((rs_size - $2 + 1))" "$rs_dir/$1" | head -c "$2"
	else
		(cd "$rs_dir" && tail -c "$2" "$1" && cat "$1.old" "$1.new") 2>/dev/null | tail -c "$2"
	fi
}

# One short line.
beat() {
	measure out
	rs_sum=$rs_total
	measure err
	rs_name=out
	[ "$rs_sum" -gt 0 ] || rs_name=err
	[ ! -s "$rs_dir/$rs_name.new" ] || rs_name=$rs_name.new
	printf 'beat %d %s\n' "$((rs_sum + rs_total))" "$(tail -c 200 "$rs_dir/$rs_name" 2>/dev/null | coded)"
}

# A run without its keeper has nobody who would tell its end.
judge_run() {
	judge
	[ "$rs_why" != orphaned ] || rs_state=gone rs_why=killed
}

report() {
	place
	judge_run
	# One that is about to start is not there yet; whoever starts it knows.
	case $rs_state:$rs_why in
	starting:* | gone:never) rs_state=missing ;;
	gone:*) conclude_for_keeper || rs_state=lost ;;
	esac
	rs_end=''
	# It may be forgotten just now.
	[ "$rs_state" != ended ] || read -r rs_end <"$rs_dir/end" || rs_state=missing
	printf 'place %s\nbase %s\nstate %s\n' "$rs_place" "$rs_base" "$rs_state"
	[ "$rs_state" != missing ] || return 0
	[ "$rs_state" != lost ] || tell why "$rs_why"
	if read_record; then
		clock
		printf 'begun %s\nnow %s\n' "$rs_begun" "$rs_now"
	fi
	[ -z "$rs_end" ] || printf 'end %s\n' "$rs_end"
	stream out
	stream err
}

# Whoever kept it was struck, too.
conclude_for_keeper() {
	[ -s "$rs_dir/ending" ] && [ "$rs_why" = killed ] && ! is_alive || return
	clock
	read -r rs_ending <"$rs_dir/ending"
	write_down end "$rs_ending 143 $rs_now" && rs_state=ended
}

# A run that another line started, to its end.
attend() {
	echo claimed
	clock
	rs_until=$((rs_ticks + 200)) rs_rest=4
	judge_run
	while [ "$rs_state" = running ]; do
		rest
		clock
		if [ "$rs_ticks" -ge "$rs_until" ]; then
			# A line that nobody hears any more is let go of.
			beat || exit
			rs_until=$((rs_ticks + 200))
		fi
		judge_run
	done
	report
}

start() {
	settle || refuse 'there is no folder that is private and writable, in which a run could be kept'
	place
	while [ -d "$rs_dir" ]; do
		if has_begun; then
			attend
			return
		fi
		[ ! -d "$rs_dir" ] || ! withdraw || discard_folder
	done
	if [ -n "${RSM_ONLY_IN-}" ] && [ "$RSM_ONLY_IN" != "$rs_place" ]; then
		report
		return
	fi
	[ -z "$RSM_SHELL" ] || (PATH=${RSM_SEEK:-$PATH} && command -v "$RSM_SHELL") >/dev/null 2>&1 ||
		refuse "unable to start $RSM_SHELL: No such file or directory"
	enter_cwd
	if rs_said=$(LC_ALL=C mkdir -m 700 "$rs_dir" 2>&1); then
		begin
	elif [ -d "$rs_dir" ]; then
		start
	else
		refuse "unable to make a folder for the run in $rs_base: ${rs_said##*: }"
	fi
}

abandon() {
	rm -rf "$rs_dir"
	refuse "unable to begin: $1"
} 2>/dev/null

furnish_run() {
	note_starter && room pid.room && room ending.room && room end.room &&
		mkfifo -m 600 "$rs_dir/out.pipe" "$rs_dir/err.pipe" && : >"$rs_dir/out" && : >"$rs_dir/err"
}

begin() {
	rs_said=$(furnish_run 2>&1) || abandon "${rs_said##*: }"
	[ ! -e "$rs_dir.never" ] || abandon 'it was stopped before it started'
	[ -z "${RSM_FROM-}" ] || rs_said=$(mv "$RSM_FROM" "$rs_dir/command" 2>&1) || abandon "${rs_said##*: }"
	# What its keeper says is passed on until its end, or until nobody hears it any more.
	start_keeper keep | cat
	report
}

# Keeps one run: starts the command, ends it in time, writes down how it ended.
keep() {
	rs_base=$RSM_BASE rs_dir=$RSM_BASE/$RSM_ID
	take_claim && launch | conclude
}

conclude() {
	# Who waits for us may be gone with its line.
	trap '' PIPE
	collect out &
	rs_out=$!
	collect err &
	rs_err=$!
	await_pid || {
		kill "$rs_out" "$rs_err"
		exit
	}
	echo claimed
	tick &
	rs_timer=$!
	await_exit || exit
	rs_ending=exited rs_living=''
	if [ -s "$rs_dir/ending" ]; then
		read -r rs_ending <"$rs_dir/ending"
		# Who strikes it goes on until all of its group is gone.
		none_in 500
	elif kill -0 "-$rs_group"; then
		members
	fi
	kill "$rs_timer"
	wait "$rs_timer"
	drain
	clock
	# As long as there is no room even to overwrite, the run counts as running.
	until write_down end "$rs_ending $rs_code $rs_now$rs_living" || [ ! -d "$rs_dir" ]; do nap 1; done
}

# Beats every two seconds, and ends the command when its time is over.
tick() {
	# Before the first sleep $! is somebody else. Not TERM: a child that has only just begun still has our trap.
	rs_other=${!-}
	trap '[ "${!-}" = "$rs_other" ] || kill -KILL "$!"; exit' TERM
	clock
	rs_until=$((rs_ticks + RSM_LIMIT))
	while clock && rs_left=$((rs_until - rs_ticks)) && [ "$rs_left" -gt 0 ]; do
		[ "$rs_left" -lt 200 ] || rs_left=200
		doze "$((rs_left / 100)).$(printf %02d "$((rs_left % 100))")" || doze 1
		# Nobody waits any more for a run whose keeper was killed.
		lives "$rs_keeper" "$rs_keeper_birth" || {
			kill -KILL "$$"
			exit
		}
		beat
	done
	strike timed_out
}

doze() {
	sleep "$1" >/dev/null 2>&1 &
	wait "$!"
}

# strike ENDING
strike() {
	[ -s "$rs_dir/ending" ] || write_down ending "$1"
	fell 200 10
}

# A process left behind may hold a stream for ever; what was printed before the end must still have been collected.
drain() {
	rs_turns=0 rs_rest=2
	while { born "$rs_out" || born "$rs_err"; } && [ "$rs_turns" -lt 16 ]; do
		rest
		rs_turns=$((rs_turns + 1))
		[ "$rs_turns" -lt 5 ] || ! is_drained || return 0
	done
}

# Whether who reads the open streams sleeps: with anything in its pipe it would not.
is_drained() {
	nap 0.1
	rows_with "$rs_out" "$rs_err"
	for rs_file in $rs_files; do
		read -r rs_row <"$rs_file" || continue
		# shellcheck disable=SC2086 # a row of numbers
		set -- ${rs_row##*) }
		case "$2 $1" in "$rs_out S" | "$rs_err S") ;; "$rs_out "* | "$rs_err "*) return 1 ;; esac
	done
}

# collect NAME: the first 64 MiB into its file, then the last 4 to 8 MiB into two, and how many bytes lie between.
collect() {
	# Not beside the call: there sh keeps the old file open, and with it who waits for the end of the keeper's words.
	exec <"$rs_dir/$1.pipe" >/dev/null
	if pour "$rs_dir/$1" "$rs_largest"; then
		rs_dropped=0
		while pour "$rs_dir/$1.new" "$rs_segment"; do
			size "$rs_dir/$1.old"
			rs_dropped=$((rs_dropped + rs_size))
			mv -f "$rs_dir/$1.new" "$rs_dir/$1.old" && echo "$rs_dropped" >"$rs_dir/$1.gone"
		done
	fi
}

# pour FILE SIZE: append standard input until the file has that size; fails at the end of the input. dd, because it
# passes on at once what it reads, and never reads more than it was asked for.
pour() {
	rs_size=0
	[ ! -s "$1" ] || size "$1"
	while [ "$rs_size" -lt "$2" ]; do
		rs_before=$rs_size
		rs_count=$((($2 - rs_size + rs_block - 1) / rs_block))
		[ "$rs_count" -le 256 ] || rs_count=256
		# Neither a full disk nor a result that has been told may end whoever still prints.
		if [ -s "$rs_dir/end" ] || ! rs_said=$(exec dd bs="$rs_block" count="$rs_count" 2>&1 >>"$1"); then
			cat >/dev/null
			return 1
		fi
		! is_input_over || return 1
		size "$1"
		[ "$rs_size" -gt "$rs_before" ] || return 1
	done
}

# Whether dd has read less often than it might have; it says "FULL+PARTIAL records in" first.
is_input_over() {
	set -- "${rs_said%%+*}" "${rs_said#*+}"
	case $1${2%% *} in '' | *[!0-9]*) return 1 ;; esac
	[ "$(($1 + ${2%% *}))" -lt "$rs_count" ]
}

# A file for what is more than fits into a variable of the environment.
bring() {
	known
	printf 'base %s\n' "$rs_base"
	if rs_said=$( (umask 077 && printf %s "$RSM_DATA" | LC_ALL=C cat >"$rs_base/$RSM_FROM") 2>&1); then
		echo 'state brought'
	else
		rm -f "$rs_base/$RSM_FROM"
		tell why "${rs_said##*: }"
	fi
}

# A file that was brought, and that nobody needs any more.
discard() {
	rm -f "$RSM_FROM"
	echo 'state discarded'
}

known() {
	if settle; then
		boot
	else
		echo 'state missing'
		exit
	fi
}

look() {
	known
	report
}

stop() {
	known
	# A run that is not there must not come later.
	[ -z "${RSM_REVOKE-}" ] || [ -s "$rs_dir/pid" ] || echo >"$rs_dir.never"
	# Nor one whose keeper has not claimed it yet, though whoever started that may be dead by now.
	until has_begun || [ ! -d "$rs_dir" ] || withdraw; do :; done
	case $rs_state:$rs_why in
	running:orphaned) strike stopped ;;
	running:*) strike stopped && concluded ;;
	esac
	report
}

# The keeper writes down the end a moment after it.
concluded() {
	clock
	rs_until=$((rs_ticks + 500)) rs_rest=4
	while judge && [ "$rs_state" = running ] && [ "$rs_ticks" -lt "$rs_until" ]; do
		rest
		clock
	done
}

forget() {
	known
	for rs_id in $RSM_IDS; do
		rs_dir=$rs_base/$rs_id
		judge_run
		[ "$rs_state" = running ] || { discard_folder && rm -f "$rs_dir.never" "$rs_dir.script"; }
	done
	echo 'state forgotten'
}

# Ended runs that nobody asked for: those of yesterday, and the oldest beyond 1 GiB. Those of an outpost have a lock.
# This happens at every login: where all together are small, it starts no process for each of what may be thousands.
prune() {
	cd "$rs_base" || return
	rs_sum=0
	du -sk . | {
		read -r rs_size _
		if [ "${rs_size:-0}" -gt 1048576 ]; then prune_largest; else prune_oldest; fi
	}
}

prune_oldest() {
	find . ! -name . -prune -name 'run-*' -mtime +0 | while read -r rs_id; do
		! is_over "${rs_id#./}" || rm -rf "$rs_dir"
	done
}

prune_largest() {
	# shellcheck disable=SC2012 # newest first, and the names are our own
	ls -dt run-* | while read -r rs_id; do
		rs_size=$(du -sk "$rs_id" | cut -f1)
		rs_sum=$((rs_sum + rs_size))
		is_over "$rs_id" || continue
		if [ "$rs_sum" -gt 1048576 ] || [ -n "$(find "$rs_id" -prune -mtime +0)" ]; then rm -rf "$rs_dir"; fi
	done
}

# is_over ID: whether it is a run of ours that has ended.
is_over() {
	rs_dir=$rs_base/$1
	[ ! -f "$rs_dir/lock" ] || return
	judge_run
	[ "$rs_state" != running ] && [ "$rs_state" != starting ]
}
