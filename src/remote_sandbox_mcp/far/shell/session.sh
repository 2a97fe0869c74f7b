#!/bin/bash
# What a shell of exec_bash keeps between two calls. core/shell_session.py has bash evaluate pieces of this file; each
# begins with a line "## NAME". Names of ours begin with __rsm_, and are never kept. Set before:
#   __rsm_key    names this installation and this sandbox; __rsm_name: the session; __rsm_run: the run of this command
#   __rsm_wait   for how many seconds to wait for another command of the session; __rsm_limit: this one's time limit
#   __rsm_stays  1: the command begins where the shell was started; 0: in the session's folder
#   __rsm_guard  1: the command has the word trap, see the function of that name
#   __rsm_dump   the piece "dump"; __rsm_s: the command
#   __rsm_sweeps 1: look also removes sessions that were not used for a week
#
# A session is a folder that only its owner can read, with these files:
#   state  bash source: options, variables and then functions; renamed into place when a command has ended
#   last   a line when a command begins and one when its state is kept: RUN begun|kept new|found GONE FOLDER; GONE is 1
#          if the session's folder could not be entered
#   lock   PID BIRTH HOST DEADLINE RUN of the command that uses the session now
# A refusal is the line "remote-sandbox-session RUN WHY DETAIL" on stderr and exit status 75; nothing has begun then.
# shellcheck disable=SC2154,SC2064 # what is set before; traps whose text is made here

## place
__rsm_refuse() {
	printf 'remote-sandbox-session %s %s\n' "$__rsm_run" "$*" >&2
	exit 75
}

# Whether it is a real folder of ours; only its owner could have opened it to others.
__rsm_is_ours() {
	[[ ! -L $1 && -d $1 && -O $1 ]]
}

# Sets __rsm_dir: in the home folder or, where that cannot be written, in a folder of our own in /tmp or /dev/shm.
__rsm_settle() {
	local home=${HOME-} base bases part=${REMOTE_SANDBOX_PLACE-}
	# After sudo, HOME may still be the user's.
	[[ $EUID != 0 || -O $home ]] || home=~root
	bases=("$home/.local/state/remote-sandbox" "/tmp/remote-sandbox-$EUID" "/dev/shm/remote-sandbox-$EUID")
	# Within walls, nothing else is writable.
	[[ -z ${REMOTE_SANDBOX_WALLS-} ]] || bases=("$home/.cache/remote-sandbox-$part" "/tmp/remote-sandbox-$EUID-$part")
	for base in "${bases[@]}"; do
		[[ $base != /.local/* ]] || continue
		[[ -d $base/shells ]] || (umask 077 && mkdir -p "$base/shells") 2>/dev/null
		__rsm_dir=$base/shells/$__rsm_key.$__rsm_name
		if __rsm_is_ours "$base" && __rsm_is_ours "$base/shells" && [[ -w $base/shells ]]; then return; fi
	done
	__rsm_refuse place
}

# Sets __rsm_now, in seconds since the epoch.
__rsm_clock() {
	printf -v __rsm_now '%(%s)T' -1 2>/dev/null || __rsm_now=$(date +%s)
}

# __rsm_birth PID: sets __rsm_born to the time at which this process began; fails if it has ended.
__rsm_birth() {
	local row
	__rsm_born=none
	if [[ ! -r /proc/self/stat ]]; then
		kill -0 "$1"
		return
	fi
	read -r row <"/proc/$1/stat" || return
	read -r -a row <<<"${row##*) }"
	[[ ${row[0]} != [ZX] ]] && __rsm_born=${row[19]}
} 2>/dev/null

# __rsm_holds LINE: whether the command of a lock lives. One on another machine with the same home: until its time is up.
__rsm_holds() {
	local pid birth host deadline
	read -r pid birth host deadline _ <<<"$1"
	[[ -n $deadline ]] && ((__rsm_now < deadline)) || return
	[[ $host = "$HOSTNAME" ]] || return 0
	__rsm_birth "$pid" && [[ $__rsm_born = "$birth" ]]
} 2>/dev/null

# __rsm_claim FILE: makes it, with our line; fails if it exists.
__rsm_claim() {
	set -C
	printf '%s\n' "$__rsm_line" >"$1"
	local failed=$?
	set +C
	return "$failed"
} 2>/dev/null

# Takes the session, or waits until the command that has it has ended. The lock of a dead command is removed by one process
# at a time: the one that has made the file `breaking`.
__rsm_take() {
	local lock=$__rsm_dir/lock breaking=$__rsm_dir/breaking seen again turns=0 until
	__rsm_birth "$$"
	__rsm_clock
	__rsm_line="$$ $__rsm_born $HOSTNAME $((__rsm_now + __rsm_limit + 10)) $__rsm_run"
	until=$((__rsm_now + __rsm_wait))
	until __rsm_claim "$lock"; do
		[[ -d $__rsm_dir ]] || mkdir -m 700 "$__rsm_dir"
		seen=''
		read -r seen <"$lock"
		# Between its making and its writing a lock is empty for a moment.
		if [[ -n $seen || turns -gt 20 ]] && ! __rsm_holds "$seen"; then
			if __rsm_claim "$breaking"; then
				again=''
				read -r again <"$lock"
				[[ $again != "$seen" ]] || rm -f "$lock"
				rm -f "$breaking"
				continue
			fi
			read -r again <"$breaking" && ! __rsm_holds "$again" && rm -f "$breaking"
		fi
		__rsm_clock
		((__rsm_now < until)) || __rsm_refuse busy "${seen##* }" 2>&3
		turns=$((turns + 1))
		sleep 0.05 || sleep 1
	done
} 3>&2 2>/dev/null

## enter
set +o posix
__rsm_settle
[[ -d $__rsm_dir ]] || mkdir -m 700 "$__rsm_dir" 2>/dev/null
__rsm_is_ours "$__rsm_dir" || __rsm_refuse place
__rsm_take
__rsm_found=new __rsm_gone=0
if [[ -e $__rsm_dir/state || -L $__rsm_dir/state ]]; then
	__rsm_found=found
	if [[ -L $__rsm_dir/state || ! -f $__rsm_dir/state || ! -O $__rsm_dir/state ]]; then
		rm -f "$__rsm_dir/lock"
		__rsm_refuse foreign "$__rsm_dir/state"
	fi
fi
__rsm_mv=/bin/mv __rsm_rm=/bin/rm
[[ -x $__rsm_mv && -x $__rsm_rm ]] || __rsm_mv=$(type -P mv) __rsm_rm=$(type -P rm)
__rsm_x='' __rsm_k='' __rsm_t='' __rsm_o=''
__rsm_agent=${SSH_AUTH_SOCK-}

if [[ $__rsm_found = found ]]; then
	# What the user has unset stays unset, although the machine's environment has it.
	for __rsm_i in $(compgen -e); do
		case $__rsm_i in
		SSH_CONNECTION | SSH_CLIENT | SSH_TTY | SHLVL | PWD | OLDPWD | _) ;;
		*) unset -v "$__rsm_i" ;;
		esac
	done
	unalias -a
	# shellcheck source=/dev/null
	. "$__rsm_dir/state"
	# An agent of an earlier connection has gone with it.
	[[ -z $__rsm_agent || -S ${SSH_AUTH_SOCK-} ]] || export SSH_AUTH_SOCK=$__rsm_agent
	\builtin eval "set -- $__rsm_v"
	\builtin eval "$__rsm_k"
	if [[ $__rsm_stays = 0 ]]; then
		__rsm_i=${OLDPWD-}
		\builtin cd -- "$__rsm_p" || __rsm_gone=1
		[[ -z $__rsm_i ]] || OLDPWD=$__rsm_i
	fi
	for __rsm_i in braceexpand hashall interactive-comments; do
		case :$__rsm_o: in *":$__rsm_i:"*) ;; *) \builtin set +o "$__rsm_i" ;; esac
	done
fi </dev/null >/dev/null 2>&1
if ! \builtin printf '%s begun %s %s %s\n' "$__rsm_run" "$__rsm_found" "$__rsm_gone" "${PWD//$'\n'/?}" \
	>>"$__rsm_dir/last"; then
	"$__rsm_rm" -f "$__rsm_dir/lock"
	__rsm_refuse full "$__rsm_dir" 2>&3
fi 3>&2 2>/dev/null
# What runs at the end of the command's shell: in a subshell, which may change what it likes. Programs are called by their
# whole paths, because PATH is the user's.
\builtin printf -v __rsm_e '__rsm_dir=%q __rsm_mv=%q __rsm_rm=%q __rsm_run=%q __rsm_found=%q __rsm_gone=%q\n%s\n' \
	"$__rsm_dir" "$__rsm_mv" "$__rsm_rm" "$__rsm_run" "$__rsm_found" "$__rsm_gone" "$__rsm_dump"
__rsm_z="(__rsm_r=\$?
case \$(\\builtin trap -p EXIT) in *__rsm_*) ;; *) ($__rsm_e) </dev/null ;; esac
\\builtin exit \$__rsm_r)"
__rsm_e="{ \\builtin : __rsm_; \\builtin test \"\${BASH_SUBSHELL:-0}\" -ne 0 || ($__rsm_e); } </dev/null >/dev/null 2>&1"
\builtin trap "$__rsm_e" EXIT
# Without a trap of its own, a shell that is ended by TERM runs the trap for EXIT, and would keep a state that is not whole.
case $__rsm_k in
*SIGTERM*) ;;
*) \builtin trap '{ \builtin : __rsm_; \builtin trap - EXIT TERM; \builtin kill -TERM "$$"; } 2>/dev/null' TERM ;;
esac

if [[ $__rsm_guard = 1 ]]; then
	# A trap of the user's for EXIT runs after ours. The shell's status is still that of the command then.
	trap() {
		\builtin trap "$@" || \builtin return
		\builtin test "${BASH_SUBSHELL:-0}" -eq 0 || \builtin return 0
		\builtin set -- "$(\builtin trap -p EXIT)"
		case $1 in
		*__rsm_*) \builtin return 0 ;;
		'') \builtin set -- -- : ;;
		*) \builtin eval "set -- ${1#trap }" ;;
		esac
		\builtin trap "{ __rsm_r=\$?; } 2>/dev/null
$__rsm_e
if { \\builtin test \$__rsm_r -eq 0; } 2>/dev/null; then
${2:-:}
else
{ (\\builtin exit \$__rsm_r); } 2>/dev/null || {
${2:-:}
}
fi" EXIT
	}
else
	\builtin unset -v __rsm_e
fi

# What would show our own commands, or act on them, is set by the first line of the command itself.
case :$__rsm_o: in *:verbose:*) __rsm_x+='\builtin set -o verbose;' ;; esac
case :$__rsm_o: in *:xtrace:*) __rsm_x+='\builtin set -o xtrace;' ;; esac
[[ -z $__rsm_t ]] || __rsm_x+="{ $__rsm_t; } 2>/dev/null;"
__rsm_x+=$__rsm_s
__rsm_s=''
for __rsm_i in allexport emacs errexit errtrace functrace histexpand history ignoreeof keyword monitor noclobber noglob \
	nolog notify nounset physical pipefail posix vi; do
	case :$__rsm_o: in *":$__rsm_i:"*) __rsm_s+=" -o $__rsm_i" ;; esac
done
\builtin unset -f __rsm_refuse __rsm_is_ours __rsm_settle __rsm_clock __rsm_birth __rsm_holds __rsm_claim __rsm_take
\builtin unset -v __rsm_key __rsm_name __rsm_run __rsm_wait __rsm_limit __rsm_stays __rsm_guard __rsm_dump \
	__rsm_dir __rsm_mv __rsm_rm __rsm_found __rsm_gone __rsm_t __rsm_o __rsm_agent __rsm_i __rsm_v __rsm_k __rsm_p \
	__rsm_now __rsm_born __rsm_line
\builtin eval "\\builtin unset -v __rsm_s${__rsm_s:+; \\builtin set$__rsm_s}"

## dump
__rsm_k=$(\builtin trap -p HUP INT QUIT USR1 USR2 PIPE ALRM TERM CHLD CONT WINCH && \builtin umask -p)
\builtin umask 077
__rsm_t=$(\builtin trap -p ERR DEBUG)
\builtin trap - DEBUG ERR RETURN EXIT TERM CHLD
__rsm_o=$SHELLOPTS
\builtin set +o posix
\builtin set +eufxv
__rsm_p=${PWD-} __rsm_v='' __rsm_n=()
if [[ -n ${FUNCNAME-} ]]; then
	# The command called exit in a function: its own variables are not the session's. What they hide shows when another
	# function unsets them.
	__rsm_unset() { \builtin unset -v "$@"; }
	# shellcheck disable=SC2168 # it is one
	while IFS=' ' \builtin read -r _ _ __rsm_i; do __rsm_n+=("${__rsm_i%%=*}"); done <<<"$(\builtin local)"
	__rsm_unset "${__rsm_n[@]}"
	\builtin unset -f __rsm_unset
	__rsm_n=()
elif (($#)); then
	\builtin printf -v __rsm_v ' %q' "$@"
fi
{
	\builtin shopt -p
	\builtin declare -p IFS
	IFS=$' \t\n'
	for __rsm_i in $(\builtin compgen -v); do
		case $__rsm_i in
		BASH_COMPAT | BASH_ENV) __rsm_n+=("$__rsm_i") ;;
		__rsm_* | BASH | BASHOPTS | BASHPID | BASH_* | COMP_WORDBREAKS | DIRSTACK | EPOCHREALTIME | EPOCHSECONDS | EUID) ;;
		FUNCNAME | GROUPS | HISTCMD | HOSTNAME | HOSTTYPE | IFS | LINENO | MACHTYPE | OSTYPE | PIPESTATUS | PPID | PWD) ;;
		RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | SSH_CLIENT | SSH_CONNECTION | SSH_TTY | UID | _) ;;
		*) __rsm_n+=("$__rsm_i") ;;
		esac
	done
	\builtin declare -p "${__rsm_n[@]}" __rsm_k __rsm_o __rsm_p __rsm_t __rsm_v
	\builtin unset -f trap
	\builtin declare -f
	\builtin declare -F
	# After the functions: one that is read while there are aliases would have them put in place of its words.
	\builtin alias -p
	\builtin printf ':\n'
} >|"$__rsm_dir/new" && \builtin unset -v LD_PRELOAD LD_LIBRARY_PATH && "$__rsm_mv" -f "$__rsm_dir/new" "$__rsm_dir/state" &&
	\builtin printf '%s kept %s %s %s\n' "$__rsm_run" "$__rsm_found" "$__rsm_gone" "${__rsm_p//$'\n'/?}" >>"$__rsm_dir/last"
"$__rsm_rm" -f "$__rsm_dir/lock"

## look
# Prints the last line of this run, and drops lines of long ago.
__rsm_settle
__rsm_u='' __rsm_c=0
while read -r __rsm_i; do
	case $__rsm_i in "$__rsm_run "*) __rsm_u=$__rsm_i ;; esac
	__rsm_c=$((__rsm_c + 1))
done 2>/dev/null <"$__rsm_dir/last"
printf '%s\n' "$__rsm_u"
[[ $__rsm_c -lt 100 ]] || printf '%s\n' "$__rsm_u" >|"$__rsm_dir/last"
[[ $__rsm_sweeps = 0 ]] || find "${__rsm_dir%/*}" ! -path "${__rsm_dir%/*}" -prune -type d -mtime +6 -exec rm -rf {} + 2>/dev/null

## close
# Drops the session, unless a command uses it. Prints whether there was one.
__rsm_settle
if [[ -d $__rsm_dir ]] && __rsm_is_ours "$__rsm_dir"; then
	__rsm_take
	rm -rf "$__rsm_dir"
	echo closed
else
	echo missing
fi
