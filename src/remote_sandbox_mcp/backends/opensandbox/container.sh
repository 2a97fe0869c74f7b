#!/bin/sh
# Runs commands and looks at files in a container without Python. What to do comes in variables, never as source:
#   RSM_VERB=start   RSM_ID RSM_SCRIPT RSM_CWD RSM_KEEP, the shell's words as arguments: waits for the end, then reports
#   RSM_VERB=look    RSM_ID RSM_KEEP: reports
#   RSM_VERB=stop    RSM_ID RSM_KEEP: TERM, two seconds, KILL for the process group, then reports
#   RSM_VERB=forget  RSM_ID
#   RSM_VERB=hello   home
#   RSM_VERB=stat    RSM_PATH: kind, size, mode, version
#   RSM_VERB=place   RSM_FROM RSM_PATH RSM_MODE RSM_EXPECTED: renames one over the other where its version is that one
# Printed are lines of a word and a value. A report: state (running, ended, stopped, lost, missing, refused), exit or
# why, seconds, and for out and err their size, and in base64 their head and tail.
set -u
umask 077
base=${TMPDIR:-/tmp}/remote-sandbox-$(id -u)
folder=$base/${RSM_ID:-none}

alive() {
	# One that is just being started has no number yet.
	[ ! -s "$folder/pid" ] || kill -0 "-$(cat "$folder/pid")" 2>/dev/null
}

coded() {
	base64 | tr -d '\n'
}

stream() {
	file=$folder/$1
	size=$(wc -c 2>/dev/null <"$file") || size=0
	printf '%s %d\n' "$1" "$size"
	[ "$size" -gt 0 ] || return 0
	printf '%s.head %s\n' "$1" "$(head -c "$RSM_KEEP" "$file" | coded)"
	rest=$((size - RSM_KEEP))
	[ "$rest" -gt 0 ] || return 0
	[ "$rest" -le "$RSM_KEEP" ] || rest=$RSM_KEEP
	printf '%s.tail %s\n' "$1" "$(head -c "$size" "$file" | tail -c "$rest" | coded)"
}

report() {
	if [ ! -d "$folder" ]; then
		echo 'state missing'
		return
	elif [ -s "$folder/exit" ]; then
		printf 'state ended\nexit %d\n' "$(cat "$folder/exit")"
	elif alive; then
		echo 'state running'
	elif [ -s "$folder/stopped" ]; then
		printf 'state stopped\nsignal %s\n' "$(cat "$folder/stopped")"
	else
		echo 'state lost'
	fi
	stream out
	stream err
}

refuse() {
	printf 'state refused\nwhy %s\n' "$1"
	rm -rf "$folder"
	exit 0
}

# shellcheck disable=SC2016 # it is expanded by the shell that runs it
inside='
	place=$1 script=$2
	shift 2
	unset RSM_VERB RSM_ID RSM_SCRIPT RSM_CWD RSM_KEEP
	umask 022
	"$@" -c "$script" >"$place/out" 2>"$place/err"
	echo $? >"$place/exit.part"
	mv "$place/exit.part" "$place/exit"
'

start() {
	mkdir -p "$base" || refuse "unable to make $base"
	# The same id starts once.
	mkdir "$folder" 2>/dev/null || {
		until gone_in 10; do :; done
		report
		exit 0
	}
	cd "${RSM_CWD:-$HOME}" 2>/dev/null || refuse "unable to enter ${RSM_CWD:-$HOME}"
	command -v "$1" >/dev/null || refuse "there is no shell $1"
	# A session of its own: its group can be signalled as a whole, and the end of ours does not reach it.
	apart=setsid
	command -v setsid >/dev/null || {
		apart=
		set -m
	}
	$apart sh -c "$inside" sh "$folder" "$RSM_SCRIPT" "$@" </dev/null >/dev/null 2>&1 &
	echo $! >"$folder/pid"
	wait $!
	# Killed before it could write down its end, it may have left others of its group behind, which end, too.
	[ -s "$folder/exit" ] || gone_in 40
	report
}

# Until nothing of it lives, for so many tenths of a second.
gone_in() {
	left=$1
	while alive && [ "$left" -gt 0 ]; do
		sleep 0.1
		left=$((left - 1))
	done
	! alive
}

stop() {
	if alive; then
		echo TERM >"$folder/stopped"
		kill -TERM "-$(cat "$folder/pid")" 2>/dev/null
		gone_in 20 || {
			echo KILL >"$folder/stopped"
			kill -KILL "-$(cat "$folder/pid")" 2>/dev/null
			gone_in 20
		}
	fi
	report
}

version() {
	stat -c '%i-%s-%y-%z' "$1" 2>/dev/null | tr -c 'a-zA-Z0-9.\n' -
}

describe() {
	if [ -L "$RSM_PATH" ]; then
		echo 'kind link'
	elif [ -d "$RSM_PATH" ]; then
		echo 'kind dir'
	elif [ -f "$RSM_PATH" ]; then
		echo 'kind file'
	elif [ -e "$RSM_PATH" ]; then
		echo 'kind other'
	else
		echo 'kind none'
		return
	fi
	printf 'size %s\nmode %s\nversion %s\n' "$(stat -L -c %s "$RSM_PATH")" "$(stat -L -c %a "$RSM_PATH")" "$(version "$RSM_PATH")"
}

place() {
	if [ "${RSM_EXPECTED-any}" != any ] && [ "$(version "$RSM_PATH")" != "$RSM_EXPECTED" ]; then
		rm -f "$RSM_FROM"
		echo 'kind stale'
		return
	fi
	if chmod "$RSM_MODE" "$RSM_FROM" && mv -f "$RSM_FROM" "$RSM_PATH"; then
		describe
	else
		rm -f "$RSM_FROM"
		echo 'kind refused'
	fi
}

case $RSM_VERB in
start) start "$@" ;;
look) report ;;
stop) stop ;;
forget) [ ! -s "$folder/exit" ] || rm -rf "$folder" ;;
hello) printf 'home %s\n' "$HOME" ;;
stat) describe ;;
place) place ;;
esac
