#!/bin/sh
# Runs commands in a container without Python: hello, start, look, stop, forget, discard. Goes after container.sh, before
# container_keeper.sh.
#   RSM_BASE     the folder for runs, where it is known
#   RSM_ID       the run, which is the name of its folder: mkdir of it is the start, which succeeds once
#   RSM_IDS      forget: runs whose folders may go
#   RSM_KEEP     how many bytes of each stream come back from each end
#   RSM_SCRIPT   start: what the shell runs, or RSM_FROM: a file that holds it (discard: that is not needed any more)
#   RSM_CWD      start: the folder, empty for home
#   RSM_SHELL    start: the program that must be there, empty for bash or else sh; RSM_SEEK: where to find it, or empty
#   RSM_EXPORTS  start: an export command for the command's variables, or empty
#   RSM_TIMEOUT  start: seconds, perhaps with a fraction
#   RSM_REVOKE   look, stop: not empty where a run that is not there must never start
#   RSM_WORDS    start: the shell's words (behind env, and what cannot be exported); the script follows as the last one
#
# A report: state (running, ended, lost, missing, refused); why, where it was refused; base; begun and now, in seconds
# of the same clock; end: ENDING EXIT ENDED PIDS, where PIDS still live; for out and err their size, and their bytes:
# all of them, or as many as are kept from each end.
#
# A run's folder: starter (pid, birth), pid (group, birth, keeper, birth, begun), out, err, ending (who strikes it says
# why), end. For pid, ending and end there is room before the start: a disk that is full by then must not lose them.
# Beside it is ID.never, where a run was revoked: whoever makes the one looks for the other.
# shellcheck disable=SC2034 # some of what is found is read by container_keeper.sh

nap() {
	sleep "$1" || sleep 1
} </dev/null >/dev/null 2>&1

# Sets rs_now to seconds, and rs_ticks to hundredths of them.
clock() {
	read -r rs_now _ </proc/uptime || rs_now=$(date +%s).00
	rs_ticks=${rs_now%.*}${rs_now#*.}
} 2>/dev/null

# born PID: sets rs_birth, so that its number in other hands is not taken for it; fails for one that is dead.
born() {
	rs_birth=none
	read -r rs_row <"/proc/$1/stat" || return
	# shellcheck disable=SC2086 # a row of numbers
	set -- ${rs_row##*) }
	rs_birth=${20}
	case $1 in Z | X) return 1 ;; esac
} 2>/dev/null

is_private() {
	[ "$(stat -c '%u %a %F' "$1" 2>/dev/null)" = "$rs_uid 700 directory" ] && [ -w "$1" ]
}

# A folder of ours alone (another user may have made one of that name). The platform's agent, which brings large files
# into it, takes a dollar sign in a path for the beginning of a variable's name.
settle() {
	rs_base=${RSM_BASE-}
	if [ -z "$rs_base" ] || [ ! -d "$rs_base" ]; then
		rs_uid=$(id -u)
		for rs_base in "/tmp/remote-sandbox-$rs_uid" "${HOME-}/.cache/remote-sandbox" "/dev/shm/remote-sandbox-$rs_uid" ''; do
			case $rs_base in *'$'*) continue ;; esac
			[ -d "$rs_base" ] || { mkdir -p "${rs_base%/*}/" && mkdir -m 700 "$rs_base"; } 2>/dev/null
			is_private "$rs_base" && break
		done
	fi
	rs_dir=$rs_base/${RSM_ID-}
	[ -n "$rs_base" ]
}

hello() {
	settle && printf 'base %s\n' "$rs_base"
	tell home "${HOME:-/}"
}

refuse() {
	rm -f "${RSM_FROM-}"
	echo 'state refused'
	tell why "$1"
	exit
}

read_record() {
	rs_begun=0
	read -r rs_group rs_group_birth rs_keeper rs_keeper_birth rs_begun <"$rs_dir/pid"
} 2>/dev/null

# lives PID BIRTH: whether it is still the same process.
lives() {
	born "$1" && [ "$rs_birth" = "$2" ]
}

# Sets rs_state.
judge() {
	rs_state=lost
	if [ -s "$rs_dir/end" ]; then
		rs_state=ended
	elif [ ! -d "$rs_dir" ]; then
		rs_state=missing
	elif read_record; then
		if lives "$rs_keeper" "$rs_keeper_birth"; then
			rs_state=running
		elif [ -s "$rs_dir/end" ]; then
			rs_state=ended
		fi
	elif ! read -r rs_starter rs_starter_birth <"$rs_dir/starter" || lives "$rs_starter" "$rs_starter_birth"; then
		rs_state=starting
	fi 2>/dev/null
}

# stream NAME SIZE
stream() {
	[ "$2" -gt 0 ] || return 0
	printf '%s.size %d\n%s.data ' "$1" "$2" "$1"
	if [ "$2" -le "$((2 * RSM_KEEP))" ]; then
		head -c "$2" "$rs_dir/$1" | coded
	else
		{
			head -c "$RSM_KEEP" "$rs_dir/$1"
			tail -c "+$(($2 - RSM_KEEP + 1))" "$rs_dir/$1" | head -c "$RSM_KEEP"
		} | coded
	fi
	echo
}

report() {
	judge
	if [ "$rs_state" = lost ] && [ -s "$rs_dir/ending" ]; then
		# Whoever kept it was struck, too.
		rs_state=ended
		clock
		read -r rs_ending <"$rs_dir/ending"
		printf 'end %s 143 %s\n' "$rs_ending" "$rs_now"
	fi
	# One that is about to start is not there yet; whoever starts it knows.
	[ "$rs_state" != starting ] || rs_state=missing
	printf 'base %s\nstate %s\n' "$rs_base" "$rs_state"
	[ "$rs_state" != missing ] || return 0
	if read_record; then
		clock
		printf 'begun %s\nnow %s\n' "$rs_begun" "$rs_now"
	fi
	if [ -s "$rs_dir/end" ]; then
		read -r rs_end <"$rs_dir/end"
		printf 'end %s\n' "$rs_end"
	fi
	# shellcheck disable=SC2046 # two numbers
	set -- $(stat -c %s "$rs_dir/out" "$rs_dir/err" 2>/dev/null)
	stream out "${1:-0}"
	stream err "${2:-0}"
}

# A run that another line started, to its end.
attend() {
	await_record
	while [ "$rs_state" = running ]; do
		nap 0.1
		judge
	done
	report
}

# Who starts it may have died before it wrote anything down.
await_record() {
	judge
	rs_turns=0
	while [ "$rs_state" = starting ] && [ "$rs_turns" -lt 100 ]; do
		nap 0.05
		rs_turns=$((rs_turns + 1))
		judge
	done
}

start() {
	settle || refuse 'there is no folder that is private and writable, in which a run could be kept'
	if [ -d "$rs_dir" ]; then
		attend
		return
	fi
	rs_apart=$(command -v setsid) || refuse 'there is no setsid in the container, without which no command could be ended'
	[ -z "$RSM_SHELL" ] || (PATH=${RSM_SEEK:-$PATH} && command -v "$RSM_SHELL") >/dev/null 2>&1 ||
		refuse "unable to start $RSM_SHELL: No such file or directory"
	enter
	if rs_said=$(LC_ALL=C mkdir -m 700 "$rs_dir" 2>&1); then
		begin
	elif [ -d "$rs_dir" ]; then
		attend
	else
		refuse "unable to make a folder for the run in $rs_base: ${rs_said##*: }"
	fi
}

# Where a command starts: as asked, or at home, or at the root where the home folder is missing.
enter() {
	# shellcheck disable=SC2088 # the tilde that a caller wrote
	case $RSM_CWD in
	/*) rs_folder=$RSM_CWD ;;
	'' | '~') rs_folder=${HOME:-/} ;;
	'~/'*) rs_folder=${HOME-}/${RSM_CWD#'~/'} ;;
	*) rs_folder=${HOME-}/$RSM_CWD ;;
	esac
	[ -n "$RSM_CWD" ] || [ -d "$rs_folder" ] || rs_folder=/
	cd "$rs_folder" 2>/dev/null && return
	rs_why='No such file or directory'
	[ ! -e "$rs_folder" ] || rs_why='Not a directory'
	[ ! -d "$rs_folder" ] || rs_why='Permission denied'
	refuse "unable to enter ${RSM_CWD:-"~"}: $rs_why"
}

abandon() {
	rm -rf "$rs_dir"
	refuse "unable to begin: $1"
} 2>/dev/null

# room NAME: a file that something can be written into later. Not by echo: not every shell's says why it failed.
room() {
	printf '%512s\n' '' | LC_ALL=C cat >"$rs_dir/$1"
}

# write_down NAME TEXT: into the room that was made for it.
write_down() {
	printf '%s\n' "$2" 1<>"$rs_dir/$1.room" && mv -f "$rs_dir/$1.room" "$rs_dir/$1"
} 2>/dev/null

furnish_run() {
	born "$$"
	echo "$$ $rs_birth" | LC_ALL=C cat >"$rs_dir/starter" && room pid.room && room ending.room && room end.room &&
		: >"$rs_dir/out" && : >"$rs_dir/err"
}

begin() {
	rs_said=$(furnish_run 2>&1) || abandon "${rs_said##*: }"
	[ ! -e "$rs_dir.never" ] || abandon 'it was stopped before it started'
	[ -z "${RSM_FROM-}" ] || rs_said=$(mv "$RSM_FROM" "$rs_dir/command" 2>&1) || abandon "${rs_said##*: }"
	# The end of the line ends us, and nobody else: the keeper is in a session of its own. Its words say nothing of the
	# command, or whoever looks for that among the processes would find the keeper, too.
	# shellcheck disable=SC2016 # for the shell that runs it
	RSM_VERB=keep RSM_BASE=$rs_base "$rs_apart" sh -c 'eval "$RSM_PROGRAM"' "$rs_apart" </dev/null >/dev/null 2>&1 &
	wait "$!"
	report
}

# A run that is not there must not come later.
revoke() {
	[ -z "${RSM_REVOKE-}" ] || [ -s "$rs_dir/pid" ] || echo >"$rs_dir.never"
}

# A file that was brought, and that nobody needs any more.
discard() {
	rm -f "$RSM_FROM"
	echo 'state discarded'
}

known() {
	settle || {
		echo 'state missing'
		exit
	}
}

look() {
	known
	revoke
	report
}

stop() {
	known
	revoke
	await_record
	case $rs_state in
	running) read_record && strike stopped && concluded ;;
	lost) read_record && lives "$rs_group" "$rs_group_birth" && strike stopped && leave ;;
	esac
	report
}

# Nobody waits any more for the timer that a killed keeper has left behind.
leave() {
	kill -TERM "-$rs_keeper" 2>/dev/null
}

# The keeper writes down the end a moment after it.
concluded() {
	rs_turns=0
	while judge && [ "$rs_state" = running ] && [ "$rs_turns" -lt 40 ]; do
		nap 0.05
		rs_turns=$((rs_turns + 1))
	done
}

forget() {
	known
	for rs_id in $RSM_IDS; do
		rs_dir=$rs_base/$rs_id
		judge
		[ "$rs_state" = running ] || rm -rf "$rs_dir" "$rs_dir.never" "$rs_dir.script"
	done
	echo 'state forgotten'
}
