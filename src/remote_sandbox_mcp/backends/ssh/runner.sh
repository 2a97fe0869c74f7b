#!/bin/sh
# Runs commands where there is no Python: start, look, stop, forget. POSIX sh with dd, head, id, ls, mkfifo, sleep, tail.
#
# It is sent to `sh -s`: the assignments of what is asked, this, keeper.sh, and a last line that calls main, so that a
# text that was cut anywhere does nothing. All names begin with rs_: one that the user exports must reach the command.
#
#   rs_verb       hello, start, look, stop or forget
#   rs_token      what marks our lines; nobody else on the machine knows it
#   rs_id         the run: run-[a-z0-9]*, the name of its folder; mkdir of it is the start, which succeeds once
#   rs_ids        forget: runs whose folders may go
#   rs_mark       is kept in a folder for runs that is new: it tells one place from another
#   rs_only_in    start: the place in which an earlier start was tried, or empty
#   rs_script     start: what the shell runs; rs_long is not empty where it is too long for an argument
#   rs_cwd        start: the folder, empty for home
#   rs_shell      start: the program that must be there, empty for bash or else sh; rs_path: the PATH to find it, or empty
#   rs_exports    start: an export command for the command's variables, or empty
#   rs_timeout    start: seconds, perhaps with a fraction; rs_timeout_whole for a sleep that knows none
#   rs_keep       how many bytes of each stream come back from each end
#   rs_wait       look, stop: seconds to wait for the end
#   rs_revoke     stop: not empty where a run that is not there must never start
#   main WORDS    start: the shell's words (behind env, and what cannot be exported); the script follows as the last one
#
# Output: bytes, then a line "TOKEN NAME VALUES" of its own that says what the bytes since the last such line are.
#
#   here PLACE                  comes first; bytes before it are a start-up file's and mean nothing
#   claimed                     the run is there, whether this or an earlier line started it
#   beat TOTAL TEXT             it runs; bytes so far, end of the output (\036 for each line break)
#   out TOTAL, err TOTAL        the head of a stream, and how much there was
#   out.tail, err.tail          its end, as far as the head does not hold it
#   folder PATH                 the run's folder; and then exactly one of
#   ended BEGUN ENDING EXIT ENDED PIDS...    ENDING: exited, timed_out or stopped; PIDS: what still lives of its group
#   running BEGUN NOW, lost BEGUN WHY, unstarted WHY, missing WHY, failed REASON MESSAGE, ok TEXT
#
# A run's folder: begun (whoever makes it decides whether the run begins), keeper (pid, birth, boot id, begun), group
# (pid, birth), out and err, what overflows them (.old, .new, .gone: bytes dropped), end (ENDING EXIT ENDED PIDS).
# shellcheck disable=SC2154 # what is asked is assigned by the near side

say() {
    printf '\n%s %s\n' "$rs_token" "$*"
}

# nap SECONDS WHOLE_SECONDS: not every sleep knows fractions.
nap() {
    sleep "$1" || sleep "$2"
} </dev/null >/dev/null 2>&1

clock() {
    # shellcheck disable=SC2034 # the rest of the line
    if read -r rs_now rs_rest </proc/uptime; then echo "$rs_now"; else date +%s; fi
} 2>/dev/null

# When a process was born, so that its number in other hands is not taken for it; fails for one that is dead.
birth() {
    if read -r rs_line <"/proc/$1/stat"; then
        # shellcheck disable=SC2086 # a row of numbers
        set -- ${rs_line##*) }
        case $1 in Z | X) return 1 ;; esac
        echo "${20}"
    else
        kill -0 "$1" && ps -o lstart= -p "$1" | tr -s ' ' _
    fi
} 2>/dev/null

boot() {
    cat /proc/sys/kernel/random/boot_id || sysctl -n kern.boottime | tr -s ' ' _
} 2>/dev/null

# A real folder, owned by us, closed to others (another user may have made one of that name).
is_private() {
    [ -d "$1" ] || return 1
    # shellcheck disable=SC2012,SC2046 # the row's first three words
    set -- $(ls -ldn "$1" 2>/dev/null)
    case ${1-} in drwx------*) [ "$3" = "$rs_uid" ] ;; *) return 1 ;; esac
}

# first_base TEST: fast, then still there when the disk is full, then the home folder.
first_base() {
    for rs_base in "/tmp/remote-sandbox-$rs_uid" "/dev/shm/remote-sandbox-$rs_uid" "${HOME-}/.cache/remote-sandbox"; do
        rs_dir=$rs_base/$rs_id
        "$1" && return
    done
    return 1
}

is_usable() {
    [ -d "$rs_base" ] || { mkdir -p "${rs_base%/*}" && mkdir -m 700 "$rs_base"; } 2>/dev/null
    is_private "$rs_base" && [ -w "$rs_base" ]
}

has_run() {
    [ -d "$rs_dir" ] && is_private "$rs_base" && is_private "$rs_dir"
}

# A container restarted on the same host has the same boot id but, as a rule, not the same mark.
place() {
    [ -s "$rs_base/mark" ] || (set -C && printf %s "$rs_mark" >"$rs_base/mark") 2>/dev/null
    echo "$(boot):$(cat "$rs_base/mark")"
}

read_record() {
    rs_begun=0 rs_boot=''
    read -r rs_pid rs_birth rs_boot rs_begun <"$rs_dir/keeper"
} 2>/dev/null

is_alive() {
    read_record && [ "$rs_boot" = "$(boot)" ] && [ "$rs_birth" = "$(birth "$rs_pid")" ]
}

# Sets rs_state. No record: the run is about to begin, or never will.
judge() {
    if [ -f "$rs_dir/end" ]; then
        rs_state=ended
    elif [ -d "$rs_dir/begun/never" ]; then
        rs_state=unstarted
    elif [ ! -s "$rs_dir/keeper" ]; then
        rs_state=starting
    elif is_alive; then
        rs_state=running
    elif [ -f "$rs_dir/end" ]; then
        rs_state=ended
    else
        rs_state=lost
    fi
}

# Whether a run that has not begun will now never begin.
revoke() {
    mkdir "$rs_dir/begun" 2>/dev/null && mkdir "$rs_dir/begun/never"
}

size() {
    # shellcheck disable=SC2012,SC2046 # the row's fifth word
    set -- $(ls -ln "$1" 2>/dev/null)
    rs_size=${5:-0}
}

# measure NAME: sets rs_size to what its file holds and rs_total to all that there was.
measure() {
    rs_total=0
    [ ! -s "$rs_dir/$1.gone" ] || read -r rs_total <"$rs_dir/$1.gone"
    for rs_part in "$1.old" "$1.new" "$1"; do
        rs_size=0
        [ ! -s "$rs_dir/$rs_part" ] || size "$rs_dir/$rs_part"
        rs_total=$((rs_total + rs_size))
    done
}

# tell_stream NAME: its head and its tail. What is still growing is told as it was when it was measured.
tell_stream() {
    measure "$1"
    rs_head=$((rs_size < rs_keep ? rs_size : rs_keep))
    [ "$rs_head" -eq 0 ] || dd bs="$rs_head" count=1 <"$rs_dir/$1" 2>/dev/null
    say "$1" "$rs_total"
    rs_left=$((rs_total - rs_head < rs_keep ? rs_total - rs_head : rs_keep))
    if [ "$rs_left" -eq 0 ]; then
        :
    elif [ "$rs_total" -eq "$rs_size" ]; then
        tail -c "+$((rs_size - rs_left + 1))" "$rs_dir/$1" | head -c "$rs_left"
    else
        (cd "$rs_dir" && tail -c "$rs_left" "$1" && cat "$1.old" "$1.new") 2>/dev/null | tail -c "$rs_left"
    fi
    say "$1.tail"
}

# What became of the run; rs_end is set where the end is known and no disk would take it.
tell() {
    judge
    tell_stream out
    tell_stream err
    say folder "$rs_dir"
    read_record
    [ ! -f "$rs_dir/end" ] || read -r rs_end <"$rs_dir/end"
    if [ -n "${rs_end-}" ]; then
        say ended "$rs_begun" "$rs_end"
    elif [ "$rs_state" = unstarted ]; then
        say unstarted 'it was broken off before its command began'
    elif [ "$rs_state" = running ]; then
        say running "$rs_begun" "$(clock)"
    elif [ -n "$rs_boot" ] && [ "$rs_boot" != "$(boot)" ]; then
        say lost "$rs_begun" 'the machine was restarted'
    else
        say lost "$rs_begun" 'the process that kept it was killed'
    fi
}

# One short write, so that it cannot come between the bytes of a result.
beat() {
    measure out
    rs_sum=$rs_total
    measure err
    rs_name=out
    [ "$rs_sum" -gt 0 ] || rs_name=err
    [ ! -s "$rs_dir/$rs_name.new" ] || rs_name=$rs_name.new
    say beat "$((rs_sum + rs_total))" "$(tail -c 400 "$rs_dir/$rs_name" 2>/dev/null | tr '\000\n' ' \036')"
}

# follow SECONDS: wait for the end of a run that another line started, then tell.
follow() {
    rs_until=$(clock)
    rs_until=$((${rs_until%.*} + $1))
    rs_turn=0
    while is_awaited; do
        rs_turn=$((rs_turn + 1))
        nap 0.2 1
        [ "$((rs_turn % 10))" -ne 0 ] || beat || exit
    done
    tell
}

is_awaited() {
    judge
    case $rs_state in
    starting) [ "$rs_turn" -lt 25 ] || { revoke && judge && false; } ;;
    running) rs_time=$(clock) && [ "${rs_time%.*}" -lt "$rs_until" ] ;;
    *) false ;;
    esac
}

fail() {
    say failed "$@"
    exit
}

missing() {
    say missing 'it is not known on this machine'
}

look() {
    if first_base has_run; then follow "$rs_wait"; else missing; fi
}

stop() {
    if first_base has_run; then
        judge
        if [ "$rs_state" = starting ] && ! revoke; then
            # It is beginning just now.
            nap 1 1
        fi
        judge
        case $rs_state in
        running) echo stopped 1<>"$rs_dir/events" ;;
        lost) strike_orphans ;;
        esac
        follow "$rs_wait"
    elif [ -n "$rs_revoke" ] && first_base is_usable && mkdir -m 700 "$rs_dir" 2>/dev/null && revoke; then
        say unstarted 'it was stopped before it started'
    else
        missing
    fi
}

# The group of a run whose keeper was killed: nobody else will end it.
strike_orphans() {
    # shellcheck disable=SC2034 # read by hit
    if read -r rs_group rs_birth <"$rs_dir/group" && [ "$rs_birth" = "$(birth "$rs_group")" ]; then
        hit TERM
        hit CONT
        nap 2 2
        hit KILL
    fi
} 2>/dev/null

forget() {
    for rs_id in $rs_ids; do
        first_base has_run || continue
        judge
        case $rs_state in ended | lost) rm -rf "$rs_dir" ;; esac
    done
    say ok
}

# Ended runs that nobody asked for: those of yesterday, and the oldest beyond 1 GiB. Those of an outpost have a lock.
prune() {
    cd "$rs_base" || return
    rs_sum=0
    # shellcheck disable=SC2012 # newest first, and the names are our own
    ls -dt run-* | while read -r rs_id; do
        rs_dir=$rs_base/$rs_id
        rs_size=$(du -sk "$rs_id" | cut -f1)
        rs_sum=$((rs_sum + rs_size))
        if [ -f "$rs_id/lock" ] || is_alive; then continue; fi
        if [ "$rs_sum" -gt 1048576 ] || [ -n "$(find "$rs_id" -prune -mtime +0)" ]; then rm -rf "$rs_dir"; fi
    done
}

hello() {
    (prune </dev/null >/dev/null 2>&1 &)
    say ok "${HOME-}"
}

main() {
    rs_uid=$(id -u)
    say here "$(first_base is_usable && place)"
    "$rs_verb" "$@"
}
