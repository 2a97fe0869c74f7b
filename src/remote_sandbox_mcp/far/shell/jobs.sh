#!/bin/sh
# Background jobs where there is no Python: job_start, job_keep, job_stop, job_strike. Goes after runs.sh, before
# looks.sh. RSM_WORDS, RSM_EXPORTS, RSM_SHELL, RSM_SEEK, RSM_SCRIPT and RSM_FROM are those of runs.sh, and
#   RSM_ID       the job, which is the name of its folder
#   RSM_LASTING  not empty if records of jobs must outlive a restart: they are kept in the home folder then
#   RSM_SESSION  a name that only one running job may have
#   RSM_LOG      the log, empty for .codex_logs/SESSION.log; RSM_SHOWN: the command as it is listed
#   RSM_INSTEAD  a job that must be gone without an end, or empty; RSM_EVEN_ENDED: not empty if it may have ended
#   RSM_GRACE    job_stop: hundredths of a second between TERM and KILL; RSM_TICKS: how long it may wait
#
# job_start answers with reason and why if it was refused; else with begun (first, or again) and the lines of the order;
# job_stop as job_look does.
#
# A job's folder also has: order (lines that looks.sh reports), log and cwd (links), command, stop (pid and birth of the
# process that stops it; its set-user bit is the stop mark). sessions/NAME.N is a link to the Nth job of that name.
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

rs_reason=folder rs_mine='' rs_link='' rs_new_log='' rs_kept=''
rs_full='unable to make the job'

# A home folder is often shared by several machines: each has its own folder there.
settle_jobs() {
	boot
	settle || rs_base=''
	if [ -n "${RSM_LASTING-}" ]; then
		rs_path=${HOME-}/.local/state/remote-sandbox/shell
		rs_name=$(uname -n)-$({ cat /etc/machine-id || uname -n; } 2>/dev/null | cksum)
		rs_path=$rs_path/${rs_name%% *}
		! own "${rs_path%/*}" || ! own "$rs_path" || rs_base=$rs_path
	fi
	rs_dir=$rs_base/${RSM_ID-}
	[ -n "$rs_base" ]
}

# Replaces the function of runs.sh. A refused start leaves nothing behind.
refuse() {
	take_back 2>/dev/null
	printf 'reason %s\n' "$rs_reason"
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
	settle_jobs || refuse 'unable to make the job: there is no folder that is private and writable'
	while [ -d "$rs_dir" ]; do
		if has_begun; then
			tell_started again
		fi
		[ ! -d "$rs_dir" ] || ! withdraw || discard_folder
	done
	check_predecessor
	check_session
	check_shell
	rs_reason=cwd
	enter_cwd
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

# judge_other ID
judge_other() {
	rs_own=$rs_dir rs_dir=$rs_base/$1
	judge
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

check_predecessor() {
	[ -n "$RSM_INSTEAD" ] || return 0
	judge_other "$RSM_INSTEAD"
	case $rs_state in
	gone) return ;;
	ended) [ -z "${RSM_EVEN_ENDED-}" ] || return 0 ;;
	esac
	case $rs_state in
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

# The shell that exec_bash would use: the configured one, else bash, else sh.
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
	locate "${RSM_LOG:-".codex_logs/$RSM_SESSION.log"}" "${PWD%/}"
	rs_log=$rs_path
}

refuse_log() {
	rs_reason=log
	refuse "unable to write the log $rs_log: ${1##*: }"
}

# Checks that the log can be written; notes what had to be created for that, so that take_back can remove it.
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

# Whether there is room to write: a file can be created or opened on a full disk, too.
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
	want_cards
	rs_said=$(furnish_job 2>&1) || refuse "$rs_full: ${rs_said##*: }"
	check_syntax
	open_log
	rs_said=$(note_order 2>&1) || refuse "$rs_full: ${rs_said##*: }"
	name_session
	start_job
}

furnish_job() {
	note_starter || return
	if [ -n "${RSM_FROM-}" ]; then
		LC_ALL=C cp "$RSM_FROM" "$rs_dir/command" || return
	else
		printf %s "$RSM_SCRIPT" | LC_ALL=C cat >"$rs_dir/command" || return
	fi
	note_wanted || return
	for rs_name in pid.room end.room stop; do
		room "$rs_name" || return
	done
	chmod 600 "$rs_dir/stop"
}

note_order() {
	clock
	size "$rs_log"
	rs_told=$(
		printf 'ordered %s %s\n' "$(date +%s)" "$rs_ticks"
		printf 'log_start %s\nid %s\n' "$rs_size" "$RSM_ID"
		tell session "$RSM_SESSION"
		tell cwd "$PWD"
		tell log "$rs_log"
		tell command "$RSM_SHOWN"
	)
	note order '%s\n' "$rs_told" && ln -s "$rs_log" "$rs_dir/log" && ln -s "$PWD" "$rs_dir/cwd"
}

# Of several jobs that want a name, only one can make the link. An older link is removed once a newer one exists.
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

start_job() {
	start_keeper job_keep >/dev/null
	if ! has_begun && withdraw; then
		rs_reason=cards
		[ ! -s "$rs_dir/busy" ] || refuse "$(cat "$rs_dir/busy")"
		rs_reason=keeper
		refuse "the job's keeper did not come to life"
	fi
	tell_started first
}

# tell_started first|again
tell_started() {
	printf 'begun %s\n' "$1"
	cat "$rs_dir/order"
	[ ! -s "$rs_dir/cards" ] || printf 'cards %s\n' "$(cat "$rs_dir/cards")"
	rm -f "${RSM_FROM-}"
	set -- "$rs_base"/job-*
	[ "$#" -le 300 ] || prune_jobs
	exit
}

# The keeper of one job: starts the command, and writes down its end.
job_keep() {
	rs_base=$RSM_BASE rs_dir=$RSM_BASE/$RSM_ID
	RSMCP_JOB_ID=$RSM_ID
	export RSMCP_JOB_ID
	rs_cwd=$PWD
	cd /
	with_cards run_job
}

run_job() {
	take_claim && launch "$rs_dir/log" | conclude_job
}

conclude_job() {
	await_pid && await_exit || exit
	rs_ending=exited rs_living=''
	if is_struck; then
		rs_ending=stopped
		rs_rest=4
		while is_being_struck; do rest; done
		members
	fi
	clock
	# Some file systems need room even to overwrite. While the keeper waits, the job counts as running.
	until write_down end "$rs_ending $rs_code $rs_now$rs_living" || [ ! -d "$rs_dir" ]; do nap 1; done
	last_line "$rs_code"
}

# Writes the exit code as the last line of the log, for people and tools that read it.
last_line() {
	rs_break=''
	[ ! -f "$rs_dir/log" ] || [ -z "$(tail -c 1 "$rs_dir/log")" ] || rs_break='\n'
	printf '%bEXIT_CODE=%s\n' "$rs_break" "$1" >>"$rs_dir/log"
} 2>/dev/null

job_stop() {
	begin_looks
	find_wanted
	clock
	rs_limit=$((rs_ticks + RSM_TICKS)) rs_rest=4
	while [ "$rs_state" = running ] || [ "$rs_state" = starting ]; do
		if [ "$rs_state" = running ] && ! is_being_struck; then strike_apart; fi
		rest
		judge
		clock
		[ "$rs_ticks" -lt "$rs_limit" ] || break
	done
	describe_job
}

# Stops the job by a process in its own session, which goes on if the connection is cut.
strike_apart() {
	start_keeper job_strike >/dev/null
	rs_turns=0
	until is_struck || [ "$rs_turns" -ge 40 ]; do
		nap 0.05
		rs_turns=$((rs_turns + 1))
	done
}

job_strike() {
	rs_base=$RSM_BASE rs_dir=$RSM_BASE/$RSM_ID
	! is_being_struck && read_record || exit
	born "$$"
	# The pid before the mark: a process that sees the mark reads the pid.
	printf '%s\n' "$$ $rs_birth" 1<>"$rs_dir/stop"
	chmod 4600 "$rs_dir/stop"
	fell "$RSM_GRACE" 25
	if ! lives "$rs_keeper" "$rs_keeper_birth" && [ ! -s "$rs_dir/end" ] && ! is_alive; then
		clock
		write_down end "stopped 143 $rs_now"
		last_line 143
	fi
}
