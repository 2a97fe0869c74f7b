#!/bin/sh
# What all programs for places without Python share: folders, clocks, processes, and whether something still runs.
# POSIX sh with coreutils, findutils and grep, or with busybox; /proc and setsid are used where they are there.
#
# The near side has a shell evaluate this, further pieces (runs.sh, jobs.sh, looks.sh, files.sh), and a last line that
# calls main. What is asked comes in variables, never as source. Names begin with rs_: what the user exports reaches the
# commands.
#   RSM_PROGRAM  all of this text
#   RSM_VERB     the function to call
#   RSM_CODED    which of the other variables (without RSM_) are written as `printf %b` reads them
#   RSM_NAMES    all of these variables
#   RSM_BASE     the folder for runs, where it is known; RSM_MARK: is kept in one that is new, and tells it from others
# Answers are lines of a word and a value; what may hold anything is in base64. The last line is `over`, which the shell
# prints when it exits: an answer without it was cut short.
#
# The folder of a run or a job is named by its id, and mkdir of it is the start, which succeeds once. In it:
#   starter     the pid, birth and boot of who makes it
#   claim       a link whose text is the pid and birth of the one keeper; who takes it first decides whether it begins
#   pid         group, birth, keeper, birth, begun, boot; then it has begun
#   end         ENDING EXIT ENDED PIDS, where PIDS still live
# For pid and end there is room before the start: a disk that is full by then must not lose them.
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
		# A substitution loses line breaks at its end, but not before a last letter.
		rs_value=$(printf '%b.' "$rs_value")
		eval "RSM_$rs_name=\${rs_value%.}"
	done
	RSM_CODED=
	"$RSM_VERB" "$@"
}

# nap SECONDS: not every sleep knows fractions.
nap() {
	sleep "$1" || sleep 1
} </dev/null >/dev/null 2>&1

# A nap of rs_rest hundredths of a second, longer each time, up to half a second: whoever waits for hours costs little.
rest() {
	case $rs_rest in ?) nap "0.0$rs_rest" ;; *) nap "0.$rs_rest" ;; esac
	rs_rest=$((rs_rest < 34 ? rs_rest * 3 / 2 : 50))
}

# Sets rs_now to seconds, and rs_ticks to hundredths of them.
clock() {
	read -r rs_now _ </proc/uptime || rs_now=$(date +%s).00
	rs_ticks=${rs_now%.*}${rs_now#*.}
} 2>/dev/null

# born PID: sets rs_birth, so that its number in other hands is not taken for it; fails for one that is dead.
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

# lives PID BIRTH: whether it is still the same process.
lives() {
	born "$1" && [ "$rs_birth" = "$2" ]
}

# Sets rs_pid to that of the (sub)shell that calls it: opened by itself, /proc/self is this very process.
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

# A real folder, owned by us, closed to others (another user may have made one of that name).
is_private() {
	[ -d "$1" ] && [ -w "$1" ] || return
	# shellcheck disable=SC2012,SC2046 # the row's first and third words
	set -- $(ls -ldn "$1" 2>/dev/null)
	case ${1-} in drwx------*) find_uid && [ "$3" = "$rs_uid" ] ;; *) return 1 ;; esac
}

# own FOLDER: makes it, or sees that it is ours alone.
own() {
	[ -d "$1" ] || { mkdir -p "${1%/*}/" && mkdir -m 700 "$1"; } 2>/dev/null
	is_private "$1"
}

# Sets rs_base and rs_dir: fast, then still there when the disk is full, then the home folder. A platform's agent, which
# brings large files into it, takes a dollar sign in a path for the beginning of a variable's name.
settle() {
	rs_base=${RSM_BASE-}
	# A folder that was removed meanwhile may be there again as somebody else's.
	if [ -z "$rs_base" ] || ! is_private "$rs_base"; then
		find_uid
		for rs_base in "/tmp/remote-sandbox-$rs_uid" "/dev/shm/remote-sandbox-$rs_uid" "${HOME-}/.cache/remote-sandbox" ''; do
			case $rs_base in '' | *'$'*) ;; *) own "$rs_base" && break ;; esac
		done
	fi
	rs_dir=$rs_base/${RSM_ID-}
	[ -n "$rs_base" ]
}

# A container restarted on the same host has the same boot id but not the same first process; one that was made anew
# has another mark.
place() {
	[ -s "$rs_base/mark" ] || (set -C && printf '%s\n' "$RSM_MARK" >"$rs_base/mark") 2>/dev/null
	boot
	read -r rs_mark <"$rs_base/mark"
	rs_place=$rs_boot:$rs_mark
} 2>/dev/null

# Where a command starts: as asked, or at home, or at the root where the home folder is missing.
enter_cwd() {
	locate "${RSM_CWD:-"~"}" "${HOME-}"
	[ -n "$RSM_CWD" ] || [ -d "$rs_path" ] || rs_path=/
	cd "$rs_path" 2>/dev/null && return
	rs_why='No such file or directory'
	[ ! -e "$rs_path" ] || rs_why='Not a directory'
	[ ! -d "$rs_path" ] || rs_why='Permission denied'
	refuse "unable to enter ${RSM_CWD:-"~"}: $rs_why"
}

# locate PATH FOLDER: sets rs_path to where it is.
locate() {
	# shellcheck disable=SC2088 # the tilde that a caller wrote
	case $1 in
	/*) rs_path=$1 ;;
	'~') rs_path=${HOME:-/} ;;
	'~/'*) rs_path=${HOME-}/${1#'~/'} ;;
	*) rs_path=$2/$1 ;;
	esac
}

# apart WORDS...: for a subshell's end: starts them in a session of their own, and does not wait for their end. The first
# setsid leads a session, so the second has to go on in a child. Not with &: what sh starts so ignores interrupts for ever.
apart() {
	if command -v setsid >/dev/null; then
		exec setsid setsid "$@"
	else
		# Where there is no setsid, a group has to do, if this sh can make one.
		(set -m && "$@" &)
	fi
}

# start_keeper VERB: in a session of its own, so that the end of the line does not reach it. Its words say nothing of
# the command, or whoever looks for that among the processes would find the keeper, too.
start_keeper() {
	(
		RSM_VERB=$1 RSM_BASE=$rs_base RSM_ID=${rs_dir##*/}
		export RSM_VERB RSM_BASE RSM_ID
		# shellcheck disable=SC2016 # for the shell that runs it
		apart sh -c 'eval "$RSM_PROGRAM"' </dev/null 2>/dev/null
	)
}

# note NAME FORMAT TEXT: a new file. Not every shell says why its own printf failed; cat does.
# shellcheck disable=SC2059 # the format is ours
note() {
	{ printf "$2" "$3" >"$rs_dir/$1" && [ -s "$rs_dir/$1" ]; } 2>/dev/null ||
		printf "$2" "$3" | LC_ALL=C cat >"$rs_dir/$1"
}

# room NAME: a file that something can be written into later.
room() {
	note "$1" '%512s\n' ''
}

# write_down NAME TEXT: into the room that was made for it.
write_down() {
	printf '%s\n' "$2" 1<>"$rs_dir/$1.room" && mv -f "$rs_dir/$1.room" "$rs_dir/$1"
} 2>/dev/null

note_starter() {
	born "$$"
	note starter '%s\n' "$$ $rs_birth $rs_boot"
}

# For a keeper: fails where another one has it, or where the start was withdrawn.
take_claim() {
	rs_cwd=$PWD
	cd /
	boot
	born "$$"
	ln -s "$$ $rs_birth" "$rs_dir/claim" 2>/dev/null
}

# Takes the claim, so that a keeper that comes late begins nothing.
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
	rs_state=starting
	read -r rs_pid rs_old rs_booted <"$rs_dir/starter" || return
	[ "$rs_booted" != "$rs_boot" ] || ! lives "$rs_pid" "$rs_old" || return
	rs_claim=$(readlink "$rs_dir/claim" || echo '0 none')
	read_record && return
	[ "$rs_booted" != "$rs_boot" ] || ! lives "${rs_claim% *}" "${rs_claim#* }" || return
	rs_state=gone rs_why=killed
	case $rs_claim in '0 none' | withdrawn*) rs_why=never ;; esac
} 2>/dev/null

# What was ordered after our own boot, under another boot id, was ordered on another machine that has the same home.
is_elsewhere() {
	[ -n "${RSM_LASTING-}" ] && [ "${rs_booted%/*}" != "${rs_boot%/*}" ] &&
		read -r rs_up _ </proc/uptime && read -r _ rs_ordered _ <"$rs_dir/order" &&
		[ "$rs_ordered" -gt "$(($(date +%s) - ${rs_up%.*} + 5))" ]
} 2>/dev/null

# Whether somebody else's start has come to something.
has_begun() {
	rs_turns=200
	judge
	while [ "$rs_state" = starting ] && [ "$rs_turns" -gt 0 ]; do
		nap 0.05
		# Whoever lives says so at once.
		[ -s "$rs_dir/starter" ] && rs_turns=$((rs_turns - 1)) || rs_turns=$((rs_turns - 5))
		judge
	done
	case $rs_state:$rs_why in missing: | starting: | gone:never) return 1 ;; esac
}

# The mark is a bit that says nothing else of such a file: setting it works on a full disk, and where nothing may be run.
is_struck() {
	[ -u "$rs_dir/stop" ]
}

is_being_struck() {
	is_struck && read -r rs_striker rs_striker_birth _ <"$rs_dir/stop" && lives "$rs_striker" "$rs_striker_birth"
} 2>/dev/null

# rows_with PATTERN PATTERN: sets rs_files to those rows of processes that may have one of them after their state. To
# read them all by itself takes a shell a system call for each letter.
rows_with() {
	if command -v grep >/dev/null; then
		rs_files=$(exec grep -ls -e ") [A-Za-z] $1 " -e ") [A-Za-z] $2 " /proc/[0-9]*/stat)
	else
		rs_files=$(echo /proc/[0-9]*/stat)
	fi
}

# Sets rs_living to who of the group and session lives, and rs_strays to those of them who have left the group. The dead
# ones that nobody has collected do not live.
members() {
	rs_living='' rs_strays=''
	# The number of a group whose leader is another process has gone to somebody else.
	! born "$rs_group" || [ "$rs_birth" = "$rs_group_birth" ] || return 0
	if [ ! -r /proc/self/stat ]; then
		rs_living=$(ps -A -o pid= -o pgid= -o stat= | while read -r rs_pid rs_row rs_name; do
			case $rs_row:$rs_name in "$rs_group":Z*) ;; "$rs_group":*) printf ' %s' "$rs_pid" ;; esac
		done)
		return
	fi
	rows_with "[0-9]* $rs_group" "[0-9]* [0-9]* $rs_group"
	# One that has only just begun does not lead a group yet.
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

# hit SIGNAL: one that has only just begun does not lead a group yet.
hit() {
	kill "-$1" "-$rs_group" || kill "-$1" "$rs_group"
} 2>/dev/null

# signal_all SIGNAL
signal_all() {
	is_alive || return 0
	hit "$1"
	for rs_pid in $rs_strays; do kill "-$1" "$rs_pid"; done
} 2>/dev/null

# none_in TICKS: waits until nobody lives.
none_in() {
	clock
	rs_until=$((rs_ticks + $1)) rs_rest=4
	while is_alive; do
		clock
		[ "$rs_ticks" -lt "$rs_until" ] || return
		rest
	done
}

# fell TICKS TURNS: TERM, a while, KILL again and again, because there may be ever more of them.
fell() {
	signal_all TERM
	signal_all CONT
	none_in "$1" && return
	rs_turns=0
	until signal_all KILL && none_in 20 || [ "$rs_turns" -ge "$2" ]; do
		rs_turns=$((rs_turns + 1))
	done
}

# launch [FILE]: the command, with nothing of ours in its environment; its output goes into the file, or into the pipes
# of its folder. Says "pid N" when it begins and "exit N" when it has ended.
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
	# A keeper must not hold a folder that somebody wants to unmount.
	(
		cd "$rs_cwd" || exit
		if [ -n "$rs_log" ]; then exec >>"$rs_log" 2>&1; else exec >"$rs_dir/out.pipe" 2>"$rs_dir/err.pipe"; fi
		# The variables do not pass through arguments, which everybody on the machine may read.
		eval "$rs_value"
		# A bash that takes itself for the first shell of an SSH session reads .bashrc, as the login shell has done.
		case ${SHLVL-} in '' | 0 | *[!0-9]*) SHLVL=1 ;; esac
		export SHLVL
		exec "$@"
	)
	echo "exit $?" >&3
}

leave_ours() {
	for rs_name in $RSM_NAMES; do unset "$rs_name"; done
}

# await_pid: takes the word of a launch that has begun, and writes it down; fails where there is none.
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

# await_exit: sets rs_code; fails where launch itself was killed, and nobody knows how the command ends.
await_exit() {
	read -r _ rs_code
}
