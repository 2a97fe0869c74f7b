#!/bin/sh
# Runs commands where there is no Python: hello, start, look, stop, forget, bring, discard. Goes after place.sh.
#   RSM_ID       the run, which is the name of its folder
#   RSM_IDS      forget: runs whose folders are removed
#   RSM_KEEP     how many bytes of each stream come back from each end
#   RSM_SCRIPT   start: what the shell runs, or RSM_FROM: a file that holds it (discard: the file to remove)
#   RSM_DATA     bring: text for a file of the name RSM_FROM
#   RSM_CWD      start: the folder, empty for home
#   RSM_SHELL    start: the shell, which must exist, empty for bash or else sh; RSM_SEEK: a PATH to find it, or empty
#   RSM_EXPORTS  start: an export command for the command's variables, or empty
#   RSM_INPUT    start: a file that holds its standard input in base64, or empty
#   RSM_LIMIT    start: its time limit in hundredths of a second
#   RSM_ONLY_IN  start: the place (see place.sh) in which an earlier start was tried, or empty
#   RSM_REVOKE   stop: not empty if a run that does not exist must never start
#   RSM_WORDS    start: the shell's command line (after env with variables that cannot be exported), without the script
#
# start prints `claimed` when it has begun, and then every two seconds `beat BYTES TEXT` (how much was printed, and the
# last of it). A report: place; state (running, ended, lost, missing, refused); why, if it was refused or lost; base;
# begun and now, in seconds of the same clock; end; for out and err their size, and their bytes: all of them, or as many
# as are kept from each end.
#
# A run's folder also has: out and err; what overflows them (.old, .new, .gone: bytes dropped); their pipes; ending (the
# reason, written before it is killed). Beside it is ID.never for a revoked run: a start makes the folder and then looks
# for ID.never, a stop makes ID.never and then looks for the folder, so that one of them notices the other.
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
	rm -f "${RSM_FROM-}" "${RSM_INPUT-}"
	echo 'state refused'
	tell why "$1"
	exit
}

# measure NAME: sets rs_size to the size of its file and rs_total to all bytes that were printed.
measure() {
	rs_total=0
	[ ! -s "$rs_dir/$1.gone" ] || read -r rs_total <"$rs_dir/$1.gone"
	for rs_part in "$1.old" "$1.new" "$1"; do
		rs_size=0
		[ ! -s "$rs_dir/$rs_part" ] || size "$rs_dir/$rs_part"
		rs_total=$((rs_total + rs_size))
	done
}

# stream NAME: reports its bytes; a stream that still grows is reported as it was when it was measured.
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

# last_bytes NAME COUNT: from the file, or also from those that it overflowed into.
last_bytes() {
	if [ "$rs_total" -eq "$rs_size" ]; then
		tail -c "+$((rs_size - $2 + 1))" "$rs_dir/$1" | head -c "$2"
	else
		(cd "$rs_dir" && tail -c "$2" "$1" && cat "$1.old" "$1.new") 2>/dev/null | tail -c "$2"
	fi
}

# Reports in one short line how much was printed, and the last of it.
beat() {
	measure out
	rs_sum=$rs_total
	measure err
	rs_name=out
	[ "$rs_sum" -gt 0 ] || rs_name=err
	[ ! -s "$rs_dir/$rs_name.new" ] || rs_name=$rs_name.new
	printf 'beat %d %s\n' "$((rs_sum + rs_total))" "$(tail -c 200 "$rs_dir/$rs_name" 2>/dev/null | coded)"
}

# A run whose keeper was killed counts as gone: nothing will record its end.
judge_run() {
	judge
	[ "$rs_why" != orphaned ] || rs_state=gone rs_why=killed
}

report() {
	place
	judge_run
	# A run that is about to start counts as missing; the request that starts it reports it.
	case $rs_state:$rs_why in
	starting:* | gone:never) rs_state=missing ;;
	gone:*) conclude_for_keeper || rs_state=lost ;;
	esac
	rs_end=''
	# Another request may be removing it.
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

# Writes the end of a run that was stopped together with its keeper.
conclude_for_keeper() {
	[ -s "$rs_dir/ending" ] && [ "$rs_why" = killed ] && ! is_alive || return
	clock
	read -r rs_ending <"$rs_dir/ending"
	write_down end "$rs_ending 143 $rs_now" && rs_state=ended
}

# Waits for the end of a run that another request started.
attend() {
	echo claimed
	clock
	rs_until=$((rs_ticks + 200)) rs_rest=4
	judge_run
	while [ "$rs_state" = running ]; do
		rest
		clock
		if [ "$rs_ticks" -ge "$rs_until" ]; then
			# A failed write shows that the connection is gone.
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
	[ -z "${RSM_INPUT-}" ] || rs_said=$(decode_input 2>&1) || abandon "${rs_said##*: }"
	# Pass on what the keeper prints until its end, or until the connection is gone.
	start_keeper keep | cat
	report
}

decode_input() {
	(umask 077 && LC_ALL=C base64 -d <"$RSM_INPUT" >"$rs_dir/input") && rm -f "$RSM_INPUT"
}

# The keeper of one run: starts the command, ends it at its time limit, writes down how it ended.
keep() {
	rs_base=$RSM_BASE rs_dir=$RSM_BASE/$RSM_ID
	take_claim && launch | conclude
}

conclude() {
	# The request that reads our output may be gone with its connection.
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
		# The process that stops it goes on until all of its group is gone.
		none_in 500
	elif kill -0 "-$rs_group"; then
		members
	fi
	kill "$rs_timer"
	wait "$rs_timer"
	drain
	clock
	# Some file systems need room even to overwrite. While the keeper waits, the run counts as running.
	until write_down end "$rs_ending $rs_code $rs_now$rs_living" || [ ! -d "$rs_dir" ]; do nap 1; done
}

# Beats every two seconds, and ends the command when its time is over.
tick() {
	# Before the first sleep $! is another process. KILL, because a child that has just been forked still has our trap
	# for TERM.
	rs_other=${!-}
	trap '[ "${!-}" = "$rs_other" ] || kill -KILL "$!"; exit' TERM
	clock
	rs_until=$((rs_ticks + RSM_LIMIT))
	while clock && rs_left=$((rs_until - rs_ticks)) && [ "$rs_left" -gt 0 ]; do
		[ "$rs_left" -lt 200 ] || rs_left=200
		doze "$((rs_left / 100)).$(printf %02d "$((rs_left % 100))")" || doze 1
		# The keeper was killed, so the run is lost: stop beating.
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

# strike ENDING: ends the command; the first reason that is written counts.
strike() {
	[ -s "$rs_dir/ending" ] || write_down ending "$1"
	fell 200 10
}

# Waits until all output before the end has been collected, but not for a process left behind that holds a stream.
drain() {
	rs_turns=0 rs_rest=2
	while { born "$rs_out" || born "$rs_err"; } && [ "$rs_turns" -lt 16 ]; do
		rest
		rs_turns=$((rs_turns + 1))
		[ "$rs_turns" -lt 5 ] || ! is_drained || return 0
	done
}

# Whether the collectors of open streams sleep: with bytes in their pipes they would not.
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

# collect NAME: writes the first 64 MiB to its file, the last 4 to 8 MiB to two more, and the count of bytes dropped.
collect() {
	# By exec: with a redirection of the call, sh keeps the old output open, and its reader would wait for ever.
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
		# A full disk, or a result that was reported already, must not kill a process that still prints.
		if [ -s "$rs_dir/end" ] || ! rs_said=$(exec dd bs="$rs_block" count="$rs_count" 2>&1 >>"$1"); then
			cat >/dev/null
			return 1
		fi
		! is_input_over || return 1
		size "$1"
		[ "$rs_size" -gt "$rs_before" ] || return 1
	done
}

# Whether dd read fewer blocks than it was told to; it prints "FULL+PARTIAL records in" first.
is_input_over() {
	set -- "${rs_said%%+*}" "${rs_said#*+}"
	case $1${2%% *} in '' | *[!0-9]*) return 1 ;; esac
	[ "$(($1 + ${2%% *}))" -lt "$rs_count" ]
}

# Writes a file with content that does not fit into an environment variable.
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

# Removes a file that was brought and is not needed any more.
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
	# A run that does not exist must not start later.
	[ -z "${RSM_REVOKE-}" ] || [ -s "$rs_dir/pid" ] || echo >"$rs_dir.never"
	# Nor one that no keeper has claimed yet; the process that started its keeper may be dead by now.
	until has_begun || [ ! -d "$rs_dir" ] || withdraw; do :; done
	case $rs_state:$rs_why in
	running:orphaned) strike stopped ;;
	running:*) strike stopped && concluded ;;
	esac
	report
}

# Waits for the keeper, which writes down the end a moment later.
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
		[ "$rs_state" = running ] || { discard_folder && rm -f "$rs_dir.never" "$rs_dir.script" "$rs_dir.input"; }
	done
	echo 'state forgotten'
}

# Removes ended runs whose result was never fetched: older than a day, and the oldest beyond 1 GiB. Runs of an outpost
# have a lock and are left alone. It runs at every login, so it starts a process per run only if they are large.
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

# is_over ID: whether it is a run of this program that has ended.
is_over() {
	rs_dir=$rs_base/$1
	[ ! -f "$rs_dir/lock" ] || return
	judge_run
	[ "$rs_state" != running ] && [ "$rs_state" != starting ]
}
