#!/bin/sh
# Starts background jobs in a container without Python: job_start. Goes after container_job_state.sh, before
# container_job_keeper.sh. Words, exports, shell and script are those of container_runs.sh, and
#   RSM_ID       the job, which is the name of its folder: mkdir of it is the start, which succeeds once
#   RSM_SESSION  the name that one job at a time may have
#   RSM_LOG      the log, empty for .codex_logs/SESSION.log; RSM_SHOWN: what is told of the command
#   RSM_INSTEAD  the job that must be gone without an end, or empty
#
# Answers with reason and why, where it was refused; else with begun (first, or again) and what the order says.
#
# A job's folder: starter (pid, birth, boot), claim (a link whose text is the pid and birth of the one keeper), order
# (as container_looks.sh tells it), log and cwd (links), command, pid (group, birth, keeper, birth, begun, boot), stop
# (who strikes it; the s in its mode says that somebody does), end. For pid and end there is room before the start: a
# disk that is full by then must not lose them. sessions/NAME.N is a link whose text is the Nth job of that name.
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

rs_reason=folder rs_mine='' rs_link='' rs_new_log='' rs_kept=''
rs_full='unable to make the job'

# Instead of that for runs. Nothing is left of a start that was refused.
refuse() {
	take_back 2>/dev/null
	printf 'base %s\nreason %s\n' "$rs_base" "$rs_reason"
	tell why "$1"
	exit
}

take_back() {
	rm -f "${RSM_FROM-}" "$rs_link"
	[ -z "$rs_new_log" ] || [ -s "$rs_new_log" ] || rm -f "$rs_new_log"
	rs_above=${rs_log%/*}
	while [ -n "$rs_kept" ] && [ "${rs_above:-/}" != "$rs_kept" ] && rmdir "$rs_above"; do
		rs_above=${rs_above%/*}
	done
	[ -z "$rs_mine" ] || rm -rf "$rs_mine"
}

job_start() {
	settle || refuse 'unable to make the job: there is no folder that is private and writable'
	boot
	while [ -d "$rs_dir" ]; do
		if has_begun; then
			tell_started again
		elif [ -d "$rs_dir" ]; then
			withdraw
		fi
	done
	check_predecessor
	check_session
	rs_apart=$(command -v setsid) || refuse 'there is no setsid in the container, without which no job could be ended'
	check_shell
	rs_reason=cwd
	enter
	find_log
	rs_reason=folder
	if rs_said=$(LC_ALL=C mkdir -m 700 "$rs_dir" 2>&1); then
		begin_job
	elif [ -d "$rs_dir" ]; then
		job_start
	else
		refuse "$rs_full: ${rs_said##*: }"
	fi
}

# Whether somebody else's start has come to something.
has_begun() {
	rs_turns=200
	job_judge
	while [ "$rs_state" = starting ] && [ "$rs_turns" -gt 0 ]; do
		nap 0.05
		# Whoever lives says so at once.
		[ -s "$rs_dir/starter" ] && rs_turns=$((rs_turns - 1)) || rs_turns=$((rs_turns - 5))
		job_judge
	done
	case $rs_state:$rs_why in missing: | starting: | gone:never) return 1 ;; esac
}

# Takes the claim, so that a keeper that comes late begins nothing, and makes room for another start.
withdraw() {
	ln -s 'withdrawn 0' "$rs_dir/claim" || [ "$(readlink "$rs_dir/claim")" = 'withdrawn 0' ] || return
	mv "$rs_dir" "$rs_base/.gone-$$" && rm -rf "$rs_base/.gone-$$"
} 2>/dev/null

check_predecessor() {
	[ -n "$RSM_INSTEAD" ] || return 0
	judge_other "$RSM_INSTEAD"
	case $rs_state in
	gone) return ;;
	missing) rs_why='nothing is known of it here' ;;
	ended) rs_why='it has ended' ;;
	*) rs_state=running rs_why='it still runs' ;;
	esac
	rs_reason=$rs_state
	refuse "nothing is started in place of $RSM_INSTEAD: $rs_why"
}

check_session() {
	newest "$RSM_SESSION"
	[ -n "$rs_newest" ] && [ "$rs_newest" != "$RSM_ID" ] || return 0
	judge_other "$rs_newest"
	case $rs_state in running | starting) ;; *) return ;; esac
	rs_reason=in_use
	refuse "a job named $RSM_SESSION runs already; stop it, or choose another session_name"
}

# As exec has it: the configured one, or bash, or sh where there is no bash.
check_shell() {
	rs_reason=shell
	rs_shell=$(PATH=${RSM_SEEK:-$PATH} && command -v "${RSM_SHELL:-bash}") && return
	[ -z "$RSM_SHELL" ] || refuse "unable to start $RSM_SHELL: No such file or directory"
	rs_shell=$(command -v sh)
}

check_syntax() {
	case ${rs_shell##*/} in
	bash) set -- -O extglob ;;
	sh | dash | ash | ksh | mksh | zsh) set -- ;;
	*) return ;;
	esac
	rs_said=$(cd "$rs_dir" && "$rs_shell" "$@" -n command 2>&1) && return
	rs_reason=syntax
	refuse "the command has a syntax error: $(printf %s "$rs_said" | head -c 1000)"
}

find_log() {
	# shellcheck disable=SC2088 # the tilde that a caller wrote
	case $RSM_LOG in
	'') rs_log=${PWD%/}/.codex_logs/$RSM_SESSION.log ;;
	/*) rs_log=$RSM_LOG ;;
	'~/'*) rs_log=${HOME-}/${RSM_LOG#'~/'} ;;
	*) rs_log=${PWD%/}/$RSM_LOG ;;
	esac
}

refuse_log() {
	rs_reason=log
	refuse "unable to write the log $rs_log: ${1##*: }"
}

# See that the log can be written, noting what had to be made for it.
open_log() {
	rs_above=${rs_log%/*}
	while [ -n "$rs_above" ] && [ ! -e "$rs_above" ]; do rs_above=${rs_above%/*}; done
	rs_kept=$(cd "$rs_above/" 2>/dev/null && pwd)
	rs_said=$(mkdir -p "${rs_log%/*}/" 2>&1) || refuse_log "$rs_said"
	rs_said=$(cd "${rs_log%/*}/" && pwd)
	rs_log=${rs_said%/}/${rs_log##*/}
	[ ! -d "$rs_log" ] || refuse_log 'Is a directory'
	[ ! -e "$rs_log" ] || [ -f "$rs_log" ] || [ -c "$rs_log" ] || refuse_log 'it is not a regular file'
	[ -e "$rs_log" ] || rs_new_log=$rs_log
	rs_said=$({ : >>"$rs_log"; } 2>&1) || refuse_log "$rs_said"
	has_room || refuse_log 'No space left on device'
}

# A log can be made, or be there, where nothing more can be written.
has_room() {
	if [ -n "$rs_new_log" ]; then
		echo >"$rs_log.$$" || { rm -f "$rs_log.$$" && return 1; }
		rm -f "$rs_log.$$"
		return
	fi
	df -P "$rs_log" | { read -r _ && read -r _ rs_blocks _ rs_free _ && { [ "$rs_free" != 0 ] || [ "$rs_blocks" = 0 ]; }; }
} 2>/dev/null

begin_job() {
	rs_mine=$rs_dir
	rs_said=$(furnish_job 2>&1) || refuse "$rs_full: ${rs_said##*: }"
	check_syntax
	open_log
	rs_said=$(note_order 2>&1) || refuse "$rs_full: ${rs_said##*: }"
	name_session
	launch
}

furnish_job() {
	born "$$"
	echo "$$ $rs_birth $rs_boot" | LC_ALL=C cat >"$rs_dir/starter" || return
	if [ -n "${RSM_FROM-}" ]; then
		LC_ALL=C cp "$RSM_FROM" "$rs_dir/command" || return
	else
		printf %s "$RSM_SCRIPT" | LC_ALL=C cat >"$rs_dir/command" || return
	fi
	for rs_name in pid.room end.room stop; do
		room "$rs_name" || return
	done
	chmod 600 "$rs_dir/stop"
}

note_order() {
	clock
	rs_told=$(
		printf 'ordered %s %s\n' "$(date +%s)" "$rs_ticks"
		printf 'log_start %s\nid %s\n' "$(stat -L -c %s "$rs_log")" "$RSM_ID"
		tell session "$RSM_SESSION"
		tell cwd "$PWD"
		tell log "$rs_log"
		tell command "$RSM_SHOWN"
	)
	printf '%s\n' "$rs_told" | LC_ALL=C cat >"$rs_dir/order" && ln -s "$rs_log" "$rs_dir/log" && ln -s "$PWD" "$rs_dir/cwd"
}

# Of several that want a name, one makes the link. Older links go, but whoever counts by them sees the newer one.
name_session() {
	mkdir -p "$rs_base/sessions"
	while :; do
		check_session
		rs_link=$rs_base/sessions/$RSM_SESSION.$((rs_turn + 1))
		if rs_said=$(LC_ALL=C ln -s "$RSM_ID" "$rs_link" 2>&1); then
			newest "$RSM_SESSION"
			[ "$rs_newest" != "$RSM_ID" ] || break
			rm -f "$rs_link"
		elif [ ! -L "$rs_link" ]; then
			refuse "$rs_full: ${rs_said##*: }"
		fi
		rs_link=''
	done
	rm -f "$rs_base/sessions/$RSM_SESSION.$((rs_turn - 2))"
}

launch() {
	# The end of the line ends us, and nobody else. The keeper holds our pipe until it has begun.
	# shellcheck disable=SC2016 # for the shell that runs it
	rs_said=$(RSM_VERB=job_keep RSM_BASE=$rs_base "$rs_apart" sh -c 'eval "$RSM_PROGRAM"' "$rs_apart" </dev/null 2>/dev/null &)
	if [ "$rs_said" != begun ] && { ln -s 'withdrawn 0' "$rs_dir/claim" 2>/dev/null || [ ! -L "$rs_dir/claim" ]; }; then
		rs_reason=keeper
		refuse "the job's keeper did not come to life"
	fi
	tell_started first
}

# tell_started first|again
tell_started() {
	printf 'base %s\nbegun %s\n' "$rs_base" "$1"
	cat "$rs_dir/order"
	rm -f "${RSM_FROM-}"
	set -- "$rs_base"/job-*
	[ "$#" -le 300 ] || prune_jobs
	exit
}
