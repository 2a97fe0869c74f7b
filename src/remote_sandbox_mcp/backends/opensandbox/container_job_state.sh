#!/bin/sh
# What is known of background jobs in a container without Python: their records, their names, who of them lives. Goes
# after container_keeper.sh, before container_jobs.sh, which tells what is written down.
# shellcheck disable=SC2034,SC2154 # the others read what is found here

# Sets rs_boot, which is another one after a restart of the machine, or of the container.
boot() {
	read -r rs_boot </proc/sys/kernel/random/boot_id || rs_boot=none
	born 1
	rs_boot=$rs_boot/$rs_birth
} 2>/dev/null

job_record() {
	rs_begun=0
	read -r rs_group rs_group_birth rs_keeper rs_keeper_birth rs_begun rs_booted _ <"$rs_dir/pid"
} 2>/dev/null

# Sets rs_state (starting, running, ended, gone, missing) and rs_why.
job_judge() {
	rs_state=gone rs_why=''
	if [ -s "$rs_dir/end" ]; then
		rs_state=ended
	elif [ ! -d "$rs_dir" ]; then
		rs_state=missing
	elif ! job_record; then
		judge_start
	elif [ "$rs_booted" != "$rs_boot" ]; then
		rs_why=restarted
	elif lives "$rs_keeper" "$rs_keeper_birth"; then
		rs_state=running
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
	job_record && return
	[ "$rs_booted" != "$rs_boot" ] || ! lives "${rs_claim% *}" "${rs_claim#* }" || return
	rs_state=gone rs_why=killed
	case $rs_claim in '0 none' | withdrawn*) rs_why=never ;; esac
} 2>/dev/null

# judge_other ID
judge_other() {
	rs_own=$rs_dir rs_dir=$rs_base/$1
	job_judge
	rs_dir=$rs_own
}

# newest SESSION: sets rs_newest to its job, and rs_turn to how many it had.
newest() {
	rs_turn=0 rs_newest=''
	for rs_file in "$rs_base/sessions/$1".*; do
		[ ! -L "$rs_file" ] || [ "${rs_file##*.}" -le "$rs_turn" ] || rs_turn=${rs_file##*.}
	done
	[ "$rs_turn" = 0 ] || rs_newest=$(readlink "$rs_base/sessions/$1.$rs_turn")
} 2>/dev/null

# The mark is a bit that says nothing else of such a file: setting it works on a full disk, and where nothing may be run.
is_struck() {
	[ -u "$rs_dir/stop" ]
}

is_being_struck() {
	is_struck && read -r rs_striker rs_striker_birth _ <"$rs_dir/stop" && lives "$rs_striker" "$rs_striker_birth"
} 2>/dev/null

# Sets rs_living to who of the job lives, and rs_strays to those of its session that have left its group.
members() {
	rs_living='' rs_strays=''
	# The number of a group whose leader is another process has gone to somebody else.
	! born "$rs_group" || [ "$rs_birth" = "$rs_group_birth" ] || return 0
	for rs_file in /proc/[0-9]*/stat; do
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
