#!/bin/sh
# What all programs for places without Python share: folders, clocks, processes, and whether something still runs.
# POSIX sh with coreutils, findutils and grep, or with busybox; /proc and setsid are used if they exist.
#
# The near side has a shell evaluate this, further pieces (runs.sh, jobs.sh, looks.sh, files.sh), and a last line that
# calls main. A request comes in variables, never as source. Our own names begin with rs_, so that they change no
# variable that the user exports to commands.
#   RSM_PROGRAM  all of this text
#   RSM_VERB     the function to call
#   RSM_CODED    names (without RSM_) of the other variables that are escaped for `printf %b`
#   RSM_NAMES    the names of all these variables
#   RSM_BASE     the folder for runs, if it is known; RSM_MARK: a random mark for a folder that is new
# Answers are lines of a word and a value; values that may hold any bytes are in base64. The last line is `over`, which
# the shell prints when it exits: an answer without it was cut short.
#
# The folder of a run or a job is named by its id, and mkdir of it is the start, which succeeds once. In it:
#   starter     pid, birth and boot of the process that made the folder
#   claim       a link whose text is pid and birth of the keeper; only one process can make it, and only that may begin
#   pid         group, birth, keeper, birth, begun, boot; written when the command has begun
#   end         ENDING EXIT ENDED PIDS; PIDS still live
# The files for pid and end are written in full before the start: a disk that fills up later must not lose them.
# shellcheck disable=SC2034 # what is found here is read by the other pieces

# A base64 that does not know -w says so before it reads anything.
coded() {
	base64 -w 0 2>/dev/null || { base64 2>/dev/null || openssl base64; } | tr -d '\n'
}

# tell WORD TEXT: text of any kind.
tell() {
	printf '%s %s\n' "$1" "$(printf %s "$2" | coded)"
}

main() {
	for rs_name in ${RSM_CODED-}; do
		eval "rs_value=\$RSM_$rs_name"
		# A substitution drops line breaks at its end; the dot keeps them.
		rs_value=$(printf '%b.' "$rs_value")
		eval "RSM_$rs_name=\${rs_value%.}"
	done
	RSM_CODED=
	"$RSM_VERB" "$@"
}

# nap SECONDS: sleeps; not every sleep knows fractions.
nap() {
	sleep "$1" || sleep 1
} </dev/null >/dev/null 2>&1

# Sleeps rs_rest hundredths of a second, longer each time, up to half a second: waiting for hours must cost little.
rest() {
	case $rs_rest in ?) nap "0.0$rs_rest" ;; *) nap "0.$rs_rest" ;; esac
	rs_rest=$((rs_rest < 34 ? rs_rest * 3 / 2 : 50))
}

# Sets rs_now to seconds, and rs_ticks to hundredths of them.
clock() {
	read -r rs_now _ </proc/uptime || rs_now=$(date +%s).00
	rs_ticks=${rs_now%.*}${rs_now#*.}
} 2>/dev/null

# born PID: sets rs_birth, which tells a process from a later one with the same pid; fails if it is dead.
born() {
	rs_birth=none
	if read -r rs_row <"/proc/$1/stat"; then
		# shellcheck disable=SC2086 # a row of numbers
		set -- ${rs_row##*) }
		rs_birth=${20}
		case $1 in Z | X) return 1 ;; esac
	else
		[ ! -r /proc/self/stat ] && kill -0 "$1" && rs_birth=$(ps -o lstart= -p "$1" | tr -s ' ' _)
	fi
} 2>/dev/null

# lives PID BIRTH: whether this very process still lives.
lives() {
	born "$1" && [ "$rs_birth" = "$2" ]
}

# Sets rs_pid to the pid of the calling (sub)shell, for which $$ is the parent's: `read` opens /proc/self in it.
self() {
	read -r rs_pid _ </proc/self/stat || rs_pid=$(sh -c 'echo "$PPID"')
} 2>/dev/null

# Sets rs_boot, which is another one after a restart of the machine, or of the container.
boot() {
	read -r rs_boot </proc/sys/kernel/random/boot_id || rs_boot=none
	born 1
	rs_boot=$rs_boot/$rs_birth
} 2>/dev/null

# size FILE: sets rs_size.
size() {
	# shellcheck disable=SC2012,SC2046 # the row's fifth word
	set -- $(ls -lnL "$1" 2>/dev/null)
	rs_size=${5:-0}
}

# Sets rs_uid.
find_uid() {
	while read -r rs_word rs_uid _; do
		[ "$rs_word" != Uid: ] || return 0
	done </proc/self/status
	rs_uid=$(id -u)
} 2>/dev/null

# Whether it is a real folder, owned by us and closed to others: another user may have made one of that name.
is_private() {
	[ -d "$1" ] && [ -w "$1" ] || return
	# shellcheck disable=SC2012,SC2046 # the row's first and third words
	set -- $(ls -ldn "$1" 2>/dev/null)
	case ${1-} in drwx------*) find_uid && [ "$3" = "$rs_uid" ] ;; *) return 1 ;; esac
}

# own FOLDER: makes it if needed; fails if it is not ours alone.
own() {
	[ -d "$1" ] || { mkdir -p "${1%/*}/" && mkdir -m 700 "$1"; } 2>/dev/null
	is_private "$1"
}

# Sets rs_base and rs_dir, in the first of: /tmp, /dev/shm (for a full disk), the home folder. No path with a dollar
# sign: a platform's agent, which brings large files there, would take that for a variable.
settle() {
	rs_base=${RSM_BASE-}
	# Checked again: a folder that was removed meanwhile may have been made anew by another user.
	if [ -z "$rs_base" ] || ! is_private "$rs_base"; then
		find_uid
		for rs_base in "/tmp/remote-sandbox-$rs_uid" "/dev/shm/remote-sandbox-$rs_uid" "${HOME-}/.cache/remote-sandbox" ''; do
			case $rs_base in '' | *'$'*) ;; *) own "$rs_base" && break ;; esac
		done
	fi
	rs_dir=$rs_base/${RSM_ID-}
	[ -n "$rs_base" ]
}

# Sets rs_place, which identifies where runs can be found again: a container restarted on the same host has the same
# boot id but another first process (see boot); one that was made anew has another mark.
place() {
	[ -s "$rs_base/mark" ] || (set -C && printf '%s\n' "$RSM_MARK" >"$rs_base/mark") 2>/dev/null
	boot
	read -r rs_mark <"$rs_base/mark"
	rs_place=$rs_boot:$rs_mark
} 2>/dev/null

# Enters the folder of a command: the one asked for, else the home folder, else / if that is missing.
enter_cwd() {
	locate "${RSM_CWD:-"~"}" "${HOME-}"
	[ -n "$RSM_CWD" ] || [ -d "$rs_path" ] || rs_path=/
	cd "$rs_path" 2>/dev/null && return
	rs_why='No such file or directory'
	[ ! -e "$rs_path" ] || rs_why='Not a directory'
	[ ! -d "$rs_path" ] || rs_why='Permission denied'
	refuse "unable to enter ${RSM_CWD:-"~"}: $rs_why"
}

# locate PATH FOLDER: sets rs_path to the absolute path; a relative one begins at FOLDER.
locate() {
	# shellcheck disable=SC2088 # the tilde that a caller wrote
	case $1 in
	/*) rs_path=$1 ;;
	'~') rs_path=${HOME:-/} ;;
	'~/'*) rs_path=${HOME-}/${1#'~/'} ;;
	*) rs_path=$2/$1 ;;
	esac
}

# apart WORDS...: called last in a subshell: starts a program in its own session and does not wait for it. The first
# setsid leads a session, so the second has to fork. Not with &: sh starts such programs with interrupts ignored.
apart() {
	if command -v setsid >/dev/null; then
		exec setsid setsid "$@"
	else
		# Without setsid a process group has to do, if this sh can make one.
		(set -m && "$@" &)
	fi
}

# start_keeper VERB: starts it in its own session, so that it outlives the connection. Its arguments do not contain the
# command: a `pkill -f` that is meant for the command would hit the keeper, too.
start_keeper() {
	(
		RSM_VERB=$1 RSM_BASE=$rs_base RSM_ID=${rs_dir##*/}
		export RSM_VERB RSM_BASE RSM_ID
		# shellcheck disable=SC2016 # for the shell that runs it
		apart sh -c 'eval "$RSM_PROGRAM"' </dev/null 2>/dev/null
	)
}

# note NAME FORMAT TEXT: writes a new file. Not every shell prints why its own printf failed; cat does.
# shellcheck disable=SC2059 # the format is ours
note() {
	{ printf "$2" "$3" >"$rs_dir/$1" && [ -s "$rs_dir/$1" ]; } 2>/dev/null ||
		printf "$2" "$3" | LC_ALL=C cat >"$rs_dir/$1"
}

# room NAME: a file full of blanks, which write_down can overwrite on a full disk.
room() {
	note "$1" '%512s\n' ''
}

# write_down NAME TEXT: overwrites NAME.room, then renames it to NAME.
write_down() {
	printf '%s\n' "$2" 1<>"$rs_dir/$1.room" && mv -f "$rs_dir/$1.room" "$rs_dir/$1"
} 2>/dev/null

note_starter() {
	born "$$"
	note starter '%s\n' "$$ $rs_birth $rs_boot"
}

# For a keeper: fails if another one has the claim, or if the start was withdrawn.
take_claim() {
	rs_cwd=${rs_cwd-$PWD}
	cd /
	boot
	born "$$"
	ln -s "$$ $rs_birth" "$rs_dir/claim" 2>/dev/null
}

# Takes the claim, so that a late keeper begins nothing.
withdraw() {
	ln -s 'withdrawn 0' "$rs_dir/claim" 2>/dev/null || [ "$(readlink "$rs_dir/claim")" = 'withdrawn 0' ]
}

discard_folder() {
	mv "$rs_dir" "$rs_base/.gone-$$" && rm -rf "$rs_base/.gone-$$"
} 2>/dev/null

read_record() {
	rs_begun=0
	read -r rs_group rs_group_birth rs_keeper rs_keeper_birth rs_begun rs_booted _ <"$rs_dir/pid"
} 2>/dev/null

# Sets rs_state (starting, running, ended, gone, missing) and rs_why. Needs rs_boot.
judge() {
	rs_state=gone rs_why=''
	if [ -s "$rs_dir/end" ]; then
		rs_state=ended
	elif [ ! -d "$rs_dir" ]; then
		rs_state=missing
	elif ! read_record; then
		judge_start
	elif [ "$rs_booted" != "$rs_boot" ]; then
		rs_why=restarted
		! is_elsewhere || rs_state=missing rs_why=elsewhere
	elif lives "$rs_keeper" "$rs_keeper_birth"; then
		rs_state=running
	elif [ -s "$rs_dir/end" ]; then
		rs_state=ended
	elif is_alive || is_being_struck; then
		rs_state=running rs_why=orphaned
	elif [ -s "$rs_dir/end" ]; then
		rs_state=ended
	else
		rs_why=killed
	fi
}

judge_start() {
	rs_state=gone rs_why=never
	# Its keeper found no free card.
	[ ! -s "$rs_dir/busy" ] || return 0
	rs_state=starting rs_why=''
	read -r rs_pid rs_old rs_booted <"$rs_dir/starter" || return
	[ "$rs_booted" != "$rs_boot" ] || ! lives "$rs_pid" "$rs_old" || return
	rs_claim=$(readlink "$rs_dir/claim" || echo '0 none')
	read_record && return
	[ "$rs_booted" != "$rs_boot" ] || ! lives "${rs_claim% *}" "${rs_claim#* }" || return
	rs_state=gone rs_why=killed
	case $rs_claim in '0 none' | withdrawn*) rs_why=never ;; esac
} 2>/dev/null

# Whether a job belongs to another machine with the same home: its boot id is another, and it began after our own boot.
is_elsewhere() {
	[ -n "${RSM_LASTING-}" ] && [ "${rs_booted%/*}" != "${rs_boot%/*}" ] &&
		read -r rs_up _ </proc/uptime && read -r _ rs_ordered _ <"$rs_dir/order" &&
		[ "$rs_ordered" -gt "$(($(date +%s) - ${rs_up%.*} + 5))" ]
} 2>/dev/null

# Waits for a start by another process; whether it has begun.
has_begun() {
	rs_turns=200
	# A driver that is not loaded takes its time to tell which cards are free.
	[ ! -s "$rs_dir/wanted" ] || rs_turns=800
	judge
	while [ "$rs_state" = starting ] && [ "$rs_turns" -gt 0 ]; do
		nap 0.05
		# A living starter writes its file at once, so without one the wait is shorter.
		[ -s "$rs_dir/starter" ] && rs_turns=$((rs_turns - 1)) || rs_turns=$((rs_turns - 5))
		judge
	done
	case $rs_state:$rs_why in missing: | starting: | gone:never) return 1 ;; esac
}

# The stop mark is the set-user bit, which has no other meaning here: chmod works on a full disk, and on noexec mounts.
is_struck() {
	[ -u "$rs_dir/stop" ]
}

is_being_struck() {
	is_struck && read -r rs_striker rs_striker_birth _ <"$rs_dir/stop" && lives "$rs_striker" "$rs_striker_birth"
} 2>/dev/null

# rows_with PATTERN PATTERN: sets rs_files to the stat files of processes that match one of them after their state.
# By grep, because a shell's `read` takes a system call for each byte.
rows_with() {
	if command -v grep >/dev/null; then
		rs_files=$(exec grep -ls -e ") [A-Za-z] $1 " -e ") [A-Za-z] $2 " /proc/[0-9]*/stat)
	else
		rs_files=$(echo /proc/[0-9]*/stat)
	fi
}

# Sets rs_living to the living processes of the group and session, and rs_strays to those that have left the group.
# Zombies do not count.
members() {
	rs_living='' rs_strays=''
	# If the leader was born at another time, its pid has been reused.
	! born "$rs_group" || [ "$rs_birth" = "$rs_group_birth" ] || return 0
	if [ ! -r /proc/self/stat ]; then
		rs_living=$(ps -A -o pid= -o pgid= -o stat= | while read -r rs_pid rs_row rs_name; do
			case $rs_row:$rs_name in "$rs_group":Z*) ;; "$rs_group":*) printf ' %s' "$rs_pid" ;; esac
		done)
		return
	fi
	rows_with "[0-9]* $rs_group" "[0-9]* [0-9]* $rs_group"
	# A process that has just begun does not lead a group yet.
	case $rs_files in *"/proc/$rs_group/stat"*) ;; *) rs_files="$rs_files /proc/$rs_group/stat" ;; esac
	for rs_file in $rs_files; do
		read -r rs_row <"$rs_file" || continue
		rs_pid=${rs_row%% *}
		# shellcheck disable=SC2086 # a row of numbers
		set -- ${rs_row##*) }
		[ "${3-}" = "$rs_group" ] || [ "${4-}" = "$rs_group" ] || [ "$rs_pid" = "$rs_group" ] || continue
		case $1 in Z | X) continue ;; esac
		rs_living="$rs_living $rs_pid"
		[ "$3" = "$rs_group" ] || rs_strays="$rs_strays $rs_pid"
	done
} 2>/dev/null

is_alive() {
	members
	[ -n "$rs_living" ]
}

# hit SIGNAL: signals the group, or the process alone if it has just begun and leads no group yet.
hit() {
	kill "-$1" "-$rs_group" || kill "-$1" "$rs_group"
} 2>/dev/null

# signal_all SIGNAL
signal_all() {
	is_alive || return 0
	hit "$1"
	for rs_pid in $rs_strays; do kill "-$1" "$rs_pid"; done
} 2>/dev/null

# none_in TICKS: waits until no process of the group lives; fails when the time is over.
none_in() {
	clock
	rs_until=$((rs_ticks + $1)) rs_rest=4
	while is_alive; do
		clock
		[ "$rs_ticks" -lt "$rs_until" ] || return
		rest
	done
}

# fell TICKS TURNS: TERM, a pause, then KILL repeatedly, because the group may still be growing.
fell() {
	signal_all TERM
	signal_all CONT
	none_in "$1" && return
	rs_turns=0
	until signal_all KILL && none_in 20 || [ "$rs_turns" -ge "$2" ]; do
		rs_turns=$((rs_turns + 1))
	done
}

# launch [FILE]: runs the command, with none of our variables in its environment; its output goes to the file, or to the
# pipes in its folder. Prints "pid N" when it begins and "exit N" when it has ended.
launch() {
	exec </dev/null 3>&1 >/dev/null 2>&1
	eval "set -- \"\${1-}\" $RSM_WORDS"
	rs_log=$1
	shift
	if [ -z "$RSM_SHELL" ]; then
		if command -v bash; then set -- "$@" bash -c; else set -- "$@" sh -c; fi
	fi
	if [ -n "${RSM_FROM-}" ]; then
		# shellcheck disable=SC2016 # for the shell that runs it
		set -- "$@" '. "$0"' "$rs_dir/command"
	else
		set -- "$@" "$RSM_SCRIPT"
	fi
	# shellcheck disable=SC2016 # for the shell that it starts
	set -- "$(command -v sh)" -c 'echo "pid $$" >&3; exec "$@" 3>&-' sh "$@"
	if rs_name=$(command -v setsid); then set -- "$rs_name" "$@"; else set -m; fi
	rs_value=$RSM_EXPORTS
	leave_ours
	# In a subshell: a keeper's working folder would keep a file system from being unmounted.
	(
		cd "$rs_cwd" || exit
		if [ -n "$rs_log" ]; then exec >>"$rs_log" 2>&1; else exec >"$rs_dir/out.pipe" 2>"$rs_dir/err.pipe"; fi
		[ ! -e "$rs_dir/input" ] || exec <"$rs_dir/input"
		# By eval, not as arguments of a program, which every user of the machine can read.
		eval "$rs_value"
		# With SHLVL below 1, bash takes itself for a shell started by sshd and reads .bashrc, as the login shell did.
		case ${SHLVL-} in '' | 0 | *[!0-9]*) SHLVL=1 ;; esac
		export SHLVL
		exec "$@"
	)
	echo "exit $?" >&3
}

leave_ours() {
	for rs_name in $RSM_NAMES; do unset "$rs_name"; done
}

# await_pid: reads the pid from launch and writes it down; fails if the command did not begin.
await_pid() {
	self
	rs_keeper=$rs_pid
	born "$rs_keeper"
	rs_keeper_birth=$rs_birth
	clock
	rs_begun=$rs_now
	read -r _ rs_group || return
	born "$rs_group"
	rs_group_birth=$rs_birth
	write_down pid "$rs_group $rs_group_birth $rs_keeper $rs_keeper_birth $rs_begun $rs_boot"
}

# await_exit: sets rs_code; fails if launch itself was killed, because then the exit code is lost.
await_exit() {
	read -r _ rs_code
}
