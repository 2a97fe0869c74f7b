#!/bin/sh
# Runs commands where there is no Python: start, look, stop, forget. POSIX sh; dd, head, id, ls, mkfifo, sleep, tail.
#
# It is sent to `sh -s`: the assignments of what is asked, place.sh, this, keeper.sh, and a last line that calls main,
# so that a text that was cut anywhere does nothing. Names begin with rs_: what the user exports reaches the command.
#
#   rs_verb       hello, start, look, stop or forget
#   rs_token      what marks our lines; nobody else on the machine knows it
#   rs_id         the run: run-[a-z0-9]*, the name of its folder; mkdir of it is the start, which succeeds once
#   rs_ids        forget: runs whose folders may go
#   rs_mark       is kept in a folder for runs that is new: it tells one place from another
#   rs_only_in    start: the place in which an earlier start was tried, or empty
#   rs_script     start: what the shell runs; rs_long is not empty where it is too long for an argument
#   rs_cwd        start: the folder, empty for home
#   rs_shell      start: the program that must be there, empty for bash or else sh; rs_path: where to find it, or empty
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

start() {
    if first_base has_run; then
        attach
    elif ! first_base is_usable; then
        fail folder 'unable to make a folder for the run: there is no place that is ours alone and writable'
    elif [ -n "$rs_only_in" ] && [ "$rs_only_in" != "$(place)" ]; then
        missing
    else
        find_shell
        enter
        if mkdir -m 700 "$rs_dir" 2>/dev/null; then
            begin "$@"
        elif first_base has_run; then
            attach
        else
            fail folder 'unable to make a folder for the run'
        fi
    fi
}

attach() {
    say claimed
    follow 315360000
}

find_shell() {
    [ -z "$rs_shell" ] || (PATH=${rs_path:-$PATH} && command -v "$rs_shell") >/dev/null 2>&1 ||
        fail shell "unable to start $rs_shell: No such file or directory"
}

# Where a command starts: as asked, or at home, or at the root as sshd does where the home folder is missing.
enter() {
    # shellcheck disable=SC2088 # the tilde that a caller wrote
    case $rs_cwd in
    /*) rs_folder=$rs_cwd ;;
    '' | '~') rs_folder=${HOME:-/} ;;
    '~/'*) rs_folder=${HOME-}/${rs_cwd#'~/'} ;;
    *) rs_folder=${HOME-}/$rs_cwd ;;
    esac
    [ -n "$rs_cwd" ] || [ -d "$rs_folder" ] || rs_folder=/
    cd "$rs_folder" 2>/dev/null || fail cwd "unable to enter ${rs_cwd:-"~"}: $(trouble_with "$rs_folder")"
}

trouble_with() {
    if [ -d "$1" ]; then
        echo 'Permission denied'
    elif [ -e "$1" ]; then
        echo 'Not a directory'
    else
        echo 'No such file or directory'
    fi
}

begin() {
    # A disk that takes nothing more is found out before anything has begun.
    if ! mkfifo -m 600 "$rs_dir/events" "$rs_dir/out.pipe" "$rs_dir/err.pipe" || ! echo "$$" >"$rs_dir/line"; then
        abandon
    fi 2>/dev/null
    if [ -z "$rs_shell" ]; then
        if command -v bash >/dev/null 2>&1; then set -- "$@" bash -c; else set -- "$@" sh -c; fi
    fi
    if [ -n "$rs_long" ]; then
        printf %s "$rs_script" >"$rs_dir/command" || abandon
        # shellcheck disable=SC2016 # for the shell that runs it
        set -- "$@" '. "$0"' "$rs_dir/command"
    else
        set -- "$@" "$rs_script"
    fi
    # An observer who was faster has decided that it never begins.
    if mkdir "$rs_dir/begun" 2>/dev/null; then
        launch "$@" | keep | front
    else
        tell
    fi
}

abandon() {
    rm -rf "$rs_dir"
    fail folder 'unable to make a folder for the run: the disk is full, or cannot hold pipes'
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
    # shellcheck disable=SC2034 # read by is_private
    rs_uid=$(id -u)
    say here "$(first_base is_usable && place)"
    "$rs_verb" "$@"
}
