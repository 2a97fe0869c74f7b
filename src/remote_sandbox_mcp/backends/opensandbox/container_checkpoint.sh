#!/bin/sh
# What background jobs of a container without Python have saved, and what they use: their checkpoints and processes. Goes
# after container_looks.sh, which tells what is asked and answered.
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

# Of those that are asked for by a command, each has ten seconds.
tell_checkpoint() {
	ask PATH
	rs_wanted=$rs_asked
	ask COMMAND
	[ -n "$rs_wanted$rs_asked" ] || return 0
	rs_command=$rs_asked
	ask CWD
	if [ -n "$rs_asked" ]; then
		place "$rs_asked" "${HOME-}"
	else
		rs_path=$(readlink "$rs_dir/cwd") || rs_path=${HOME:-/}
	fi
	if [ -z "$rs_wanted" ]; then
		ask_checkpoint
	else
		place "$rs_wanted" "$rs_path"
		read_checkpoint
	fi
}

trouble() {
	say trouble "$(printf %s "$1" | coded)"
}

read_checkpoint() {
	if rs_said=$(stat -L "$rs_path" 2>&1 >/dev/null); then
		if [ -d "$rs_path" ]; then
			trouble "$rs_path is a folder; list_remote_files shows what is in it"
		elif [ ! -f "$rs_path" ]; then
			trouble "$rs_path is a pipe, socket or device, not a file"
		elif [ ! -r "$rs_path" ]; then
			trouble 'Permission denied'
		else
			say saved "$(stat -L -c %Y "$rs_path")"
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
	rs_until=$((rs_ticks + 1000))
	while born "$rs_group" && [ "$rs_ticks" -lt "$rs_until" ]; do
		nap 0.05
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

# without_ours SETSID: the checkpoint's command, with nothing of ours in its environment.
without_ours() {
	set -- "$1" "$(command -v bash || echo sh)" -c "$rs_command"
	for rs_name in $(env | sed -n 's/^\(RSM_[A-Z0-9_]*\)=.*/\1/p'); do unset "$rs_name"; done
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
