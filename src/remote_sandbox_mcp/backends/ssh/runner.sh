#!/bin/sh
# Runs commands where there is no Python: start, look, stop, forget. POSIX sh with mkfifo, dd, tail, ls, id, sleep.
#
# It is sent to `sh -s` between the assignments of what is asked and a last line that calls main, so that a text
# that was cut anywhere does nothing. All names begin with rs_: one that the user exports must reach the command.
#
#   rs_verb       hello, start, look, stop or forget
#   rs_token      what marks our lines; nobody else on the machine knows it
#   rs_id         the run: run-[a-z0-9]*, the name of its folder; mkdir of it is the start, which succeeds once
#   rs_ids        forget: runs whose folders may go
#   rs_mark       kept in the folder of runs that is new: it tells one place from another
#   rs_only_in    start: the place in which an earlier start was tried, or empty
#   rs_script     start: what the shell runs; rs_long is set where it is too long for an argument
#   rs_cwd        start: the folder, empty for home
#   rs_shell      start: the program to look for before the start, or empty; rs_path the PATH to look in, or empty
#   rs_timeout    start: seconds, perhaps with a fraction; rs_timeout_whole for a sleep that knows none
#   rs_keep       how many bytes of each stream come back from each end
#   rs_wait       look, stop: seconds to wait for the end
#   rs_revoke     stop: not empty where a run that is not there must never start
#   main WORDS    the shell's words (behind env and its assignments); the script follows as the last one
#
# Output: bytes, then a line "TOKEN NAME VALUES" of its own that says what the bytes since the last such line are.
#
#   here PLACE NOW FOLDER       comes first; the bytes before it are a start-up file's and mean nothing. NOW: a clock
#   claimed                     the run is ours, and will start or has started
#   beat TOTAL TEXT             it runs; bytes so far, end of the output (\036 for each line break)
#   out TOTAL, err TOTAL        the head of a stream, and how much there was
#   out.tail, err.tail          its end, as far as the head does not hold it
#   and then exactly one of
#   ended BEGUN ENDING EXIT ENDED PIDS...    ENDING: exited, timed_out or stopped; PIDS: what still lives of its group
#   running BEGUN, lost BEGUN WHY, missing WHY, failed REASON MESSAGE, done
#
# A run's folder: keeper (pid, birth, boot id, begun), group (pid, birth), out and err with what overflows them, end.
# Processes of a run: launch | keep | front, a pipeline, because what sh starts with & ignores interrupts for ever.
# launch waits for the command, keep turns events into an end, front tells the line and dies with it.

rs_block=65536
rs_most=67108864
rs_segment=4194304

say() {
    printf '\n%s %s\n' "$rs_token" "$*"
}

# Whole and, where sleep knows them, parts of seconds.
nap() {
    sleep "$1" || sleep "$2"
} </dev/null >/dev/null 2>&1

clock() {
    { read -r rs_now rs_rest </proc/uptime && echo "$rs_now"; } || date +%s
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
    cat /proc/sys/kernel/random/boot_id || sysctl -n kern.boottime | tr -s ' ' _ || echo none
} 2>/dev/null

# A real folder, owned by us, closed to others (another user may have made one of that name).
private() {
    [ -d "$1" ] || return 1
    # shellcheck disable=SC2012,SC2046 # the row's first three words
    set -- $(ls -ldn "$1" 2>/dev/null)
    case ${1-} in drwx------*) [ "$3" = "$rs_uid" ] ;; *) return 1 ;; esac
}

bases() {
    for rs_base in "/tmp/remote-sandbox-$rs_uid" "/dev/shm/remote-sandbox-$rs_uid" "${HOME-}/.cache/remote-sandbox"; do
        "$@" && return
    done
    return 1
}

is_usable() {
    [ -d "$rs_base" ] || { mkdir -p "${rs_base%/*}" && mkdir -m 700 "$rs_base"; } 2>/dev/null
    private "$rs_base" && [ -w "$rs_base" ]
}

has_run() {
    rs_dir=$rs_base/$rs_id
    [ -d "$rs_dir" ] && private "$rs_base" && private "$rs_dir"
}

# A mark made once per folder: a container restarted on the same host has the same boot id but not this.
place() {
    [ -f "$rs_base/mark" ] || (set -C && printf %s "$rs_mark" >"$rs_base/mark") 2>/dev/null
    echo "$(boot):$(cat "$rs_base/mark")"
}

is_alive() {
    read -r rs_pid rs_birth rs_boot rs_begun <"$rs_dir/keeper" 2>/dev/null &&
        [ "$rs_boot" = "$(boot)" ] && [ "$rs_birth" = "$(birth "$rs_pid")" ]
}

# Sets rs_state. A folder without a keeper's record is one that is being made, or that nobody will ever finish.
judge() {
    rs_begun=0
    if [ -f "$rs_dir/end" ]; then
        rs_state=ended
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
        size "$rs_dir/$rs_part"
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
    if [ "$rs_left" -gt 0 ] && [ "$rs_total" -eq "$rs_size" ]; then
        tail -c "+$((rs_size - rs_left + 1))" "$rs_dir/$1" | head -c "$rs_left"
    elif [ "$rs_left" -gt 0 ]; then
        { tail -c "$rs_left" "$rs_dir/$1"; cat "$rs_dir/$1.old" "$rs_dir/$1.new"; } 2>/dev/null | tail -c "$rs_left"
    fi
    say "$1.tail"
}

# What became of the run; rs_end is the end's line where no disk would take it.
tell() {
    judge
    tell_stream out
    tell_stream err
    read -r rs_pid rs_birth rs_boot rs_begun <"$rs_dir/keeper" 2>/dev/null
    [ ! -f "$rs_dir/end" ] || read -r rs_end <"$rs_dir/end"
    if [ -n "${rs_end-}" ]; then
        say ended "$rs_begun" "$rs_end"
    elif [ "$rs_state" = running ]; then
        say running "$rs_begun"
    elif [ "$rs_state" = starting ]; then
        say missing "its start was broken off before the command began"
    elif [ "$rs_boot" != "$(boot)" ]; then
        say lost "$rs_begun" "the machine was restarted"
    else
        say lost "$rs_begun" "the process that kept it was killed"
    fi
}

beat() {
    measure out
    rs_sum=$rs_total
    rs_file=$rs_dir/out
    measure err
    [ "$rs_sum" -gt 0 ] || rs_file=$rs_dir/err
    [ ! -s "$rs_file.new" ] || rs_file=$rs_file.new
    # One short write, so that it cannot come between the bytes of a result.
    say beat "$((rs_sum + rs_total))" "$(tail -c 400 "$rs_file" 2>/dev/null | tr '\000\n' ' \036')"
}

# follow SECONDS: wait for the end of a run that another line started, then tell.
follow() {
    rs_until=$(clock)
    rs_until=$((${rs_until%.*} + $1))
    rs_turn=0
    while judge && case $rs_state in starting | running) [ "$(clock | cut -d. -f1)" -lt "$rs_until" ] ;; *) false ;; esac do
        rs_turn=$((rs_turn + 1))
        nap 0.2 1
        [ "$((rs_turn % 10))" -ne 0 ] || beat || exit
        # Whoever makes this folder first decides whether it ever begins.
        [ "$rs_state$rs_turn" != starting25 ] || ! mkdir "$rs_dir/begun" 2>/dev/null || break
    done
    tell
}

fail() {
    say failed "$@"
    exit
}

enter() {
    rs_folder=${rs_cwd:-${HOME:-/}}
    # shellcheck disable=SC2088 # the tilde that a caller wrote
    case $rs_folder in
    /*) ;;
    '~') rs_folder=${HOME:-/} ;;
    '~/'*) rs_folder=${HOME-}/${rs_folder#'~/'} ;;
    *) rs_folder=${HOME-}/$rs_folder ;;
    esac
    [ -n "$rs_cwd" ] || [ -d "$rs_folder" ] || rs_folder=/
    cd "$rs_folder" 2>/dev/null && return
    rs_why='Permission denied'
    [ -d "$rs_folder" ] || rs_why='Not a directory'
    # What cannot be reached cannot be seen to exist.
    [ -e "$rs_folder" ] || rs_why='No such file or directory'
    fail cwd "unable to enter ${rs_cwd:-'~'}: $rs_why"
}

find_shell() {
    [ -z "$rs_shell" ] || (PATH=${rs_path:-$PATH} && command -v "$rs_shell") >/dev/null 2>&1 ||
        fail shell "unable to start $rs_shell: No such file or directory"
}

start() {
    bases has_run && { say claimed && follow 315360000; return; }
    bases is_usable || fail folder 'unable to make a folder for the run: no place for it is ours and writable'
    if [ -n "$rs_only_in" ] && [ "$rs_only_in" != "$(place)" ]; then
        say missing 'it is not known on this machine'
        return
    fi
    find_shell
    enter
    rs_dir=$rs_base/$rs_id
    mkdir -m 700 "$rs_dir" 2>/dev/null || { bases has_run && follow 315360000 || fail folder 'unable to make a folder for the run'; return; }
    mkfifo -m 600 "$rs_dir/events" "$rs_dir/out.pipe" "$rs_dir/err.pipe" 2>/dev/null || abandon
    [ -n "$rs_shell" ] || { command -v bash >/dev/null 2>&1 && set -- "$@" bash -c; } || set -- "$@" sh -c
    if [ -n "$rs_long" ]; then
        printf %s "$rs_script" 2>/dev/null >"$rs_dir/command" || abandon
        # shellcheck disable=SC2016 # for the shell that runs it
        set -- "$@" '. "$0"' "$rs_dir/command"
    else
        set -- "$@" "$rs_script"
    fi
    launch "$@" </dev/null >/dev/null 2>&1 | keep 2>/dev/null | front
}

abandon() {
    rm -rf "$rs_dir"
    fail folder 'unable to make a folder for the run: the disk is full, or cannot hold pipes'
}

# The command in a session of its own (in a process group of its own where there is no setsid). The output pipes open
# only when keep is there to read events, so that none is lost.
launch() {
    command -v setsid && rs_setsid=setsid || set -m
    # shellcheck disable=SC2016 # for the shell that it starts
    ${rs_setsid-} sh -c 'echo "pid $$" 1<>"$0"; exec "$@"' "$rs_dir/events" "$@" \
        </dev/null >"$rs_dir/out.pipe" 2>"$rs_dir/err.pipe"
    echo "exit $?" 1<>"$rs_dir/events"
}

# One event after the other, until the run is over; tells front through its output.
keep() {
    mkdir "$rs_dir/begun" || return
    exec 3<>"$rs_dir/events" 4>&1 >/dev/null
    # Read by sh itself: /proc/self is then this very process.
    { read -r rs_pid rs_rest </proc/self/stat || rs_pid=$(exec sh -c 'echo "$PPID"'); } 2>/dev/null
    rs_begun=$(clock)
    echo "$rs_pid $(birth "$rs_pid") $(boot) $rs_begun" >"$rs_dir/keeper"
    collect out <"$rs_dir/out.pipe" 4>&- &
    collect err <"$rs_dir/err.pipe" 4>&- &
    alarm 4>&- &
    rs_alarm=$! rs_ending=exited rs_status='' rs_group='' rs_streams=2 rs_gone='' rs_over='' rs_killing=''
    echo claimed >&4
    while [ -z "$rs_over" ] && read -r rs_event rs_value <&3; do
        heed
    done
    finish
}

heed() {
    case $rs_event in
    pid)
        rs_group=$rs_value
        echo "$rs_group $(birth "$rs_group")" >"$rs_dir/group"
        [ "$rs_ending" = exited ] || strike
        ;;
    exit) rs_status=$rs_value ;;
    eof) rs_streams=$((rs_streams - 1)) ;;
    timed_out | stopped) [ -n "$rs_status" ] || [ "$rs_ending" != exited ] || { rs_ending=$rs_event && strike; } ;;
    kill) rs_killing=yes ;;
    late | give_up) rs_over=yes ;;
    esac
    [ -z "$rs_killing" ] || hit KILL
    [ -n "$rs_gone" ] || ! is_gone || { rs_gone=yes && after 0.2 1 late; }
    [ -z "$rs_gone" ] || [ "$rs_streams" -gt 0 ] || rs_over=yes
}

# Whether the command is no more; after a strike, its group too.
is_gone() {
    [ -n "$rs_status" ] && { [ "$rs_ending" = exited ] || [ -z "$(members)" ]; }
}

# after SECONDS WHOLE_SECONDS EVENT
after() {
    (nap "$1" "$2" && echo "$3" >&3) 4>&- &
}

hit() {
    [ -z "$rs_group" ] || kill "-$1" "-$rs_group" || kill "-$1" "$rs_group"
} 2>/dev/null

strike() {
    [ -n "$rs_group" ] || return 0
    hit TERM
    hit CONT
    after 2 2 kill
    after 4 4 give_up
    # Now and then look whether all have gone.
    (for rs_turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do nap 0.2 1 && echo look >&3; done) 4>&- &
}

# The living processes of the command's group; where there is no /proc, the group itself.
members() {
    kill -0 "-$rs_group" || return 0
    [ -r /proc/self/stat ] || echo "-$rs_group"
    for rs_stat in /proc/[0-9]*/stat; do
        read -r rs_line <"$rs_stat" || continue
        # shellcheck disable=SC2086 # a row of numbers
        set -- ${rs_line##*) }
        case $1 in Z | X) continue ;; esac
        [ "$3" != "$rs_group" ] || echo "${rs_line%% *}"
    done
} 2>/dev/null

finish() {
    kill "$rs_alarm"
    # shellcheck disable=SC2046 # a row of numbers
    rs_end=$(echo "$rs_ending" "${rs_status:-137}" "$(clock)" $(members))
    echo "$rs_end" >"$rs_dir/end.new" && mv -f "$rs_dir/end.new" "$rs_dir/end"
    echo "over $rs_end" >&4
}

# Outlives the line: a cut one does not give a command more time. Its sleep must go with it.
alarm() {
    trap 'kill "$rs_nap"; exit' TERM
    for rs_time in "$rs_timeout" "$rs_timeout_whole"; do
        sleep "$rs_time" &
        rs_nap=$!
        wait "$rs_nap" && break
    done
    echo timed_out >&3
}

# pour FILE SIZE: append standard input until the file has that size; fails at the end of the input.
pour() {
    size "$1"
    while [ "$rs_size" -lt "$2" ]; do
        rs_before=$rs_size
        rs_count=$((($2 - rs_size + rs_block - 1) / rs_block))
        # A full disk, or a reader who has gone, must not end the command.
        [ ! -f "$rs_dir/end" ] && dd bs="$rs_block" count="$((rs_count < 256 ? rs_count : 256))" 2>/dev/null >>"$1" ||
            { cat >/dev/null && return 1; }
        size "$1"
        [ "$rs_size" -gt "$rs_before" ] || return 1
    done
}

# collect NAME: the first 64 MiB into its file, then the last 4 to 8 MiB into two, and how many bytes lie between.
collect() {
    if pour "$rs_dir/$1" "$rs_most"; then
        rs_dropped=0
        while pour "$rs_dir/$1.new" "$rs_segment"; do
            size "$rs_dir/$1.old"
            rs_dropped=$((rs_dropped + rs_size))
            echo "$rs_dropped" >"$rs_dir/$1.gone"
            mv -f "$rs_dir/$1.new" "$rs_dir/$1.old"
        done
    fi
    echo eof >&3
}

# The only one with a hand on the line: when nobody hears its beats any more, it goes, and its waiting parent with it.
front() {
    while read -r rs_word rs_end; do
        [ "$rs_word" = claimed ] || break
        say claimed
        (trap '' PIPE && while nap 2 2; do beat || kill -9 "$$"; done) 2>/dev/null &
        rs_beats=$!
    done
    kill "${rs_beats-}"
    wait "${rs_beats-}"
    tell
} 2>/dev/null

stop() {
    if bases has_run; then
        judge
        [ "$rs_state" != starting ] || ! mkdir "$rs_dir/begun" 2>/dev/null || { tell && return; }
        for rs_turn in 1 2 3 4 5 6 7 8 9 10; do
            [ "$rs_state" = starting ] || break
            nap 0.2 1
            judge
        done
        [ "$rs_state" != running ] || echo stopped 1<>"$rs_dir/events"
        [ "$rs_state" != lost ] || strike_orphans
        follow "$rs_wait"
    elif [ -n "$rs_revoke" ] && bases is_usable && mkdir -m 700 "$rs_base/$rs_id" "$rs_base/$rs_id/begun" 2>/dev/null; then
        say missing 'it was stopped before it started'
    else
        say missing 'it is not known on this machine'
    fi
}

# The group of a run whose keeper was killed: nobody else will end it.
strike_orphans() {
    read -r rs_group rs_birth 2>/dev/null <"$rs_dir/group" && [ "$rs_birth" = "$(birth "$rs_group")" ] || return 0
    hit TERM
    hit CONT
    nap 2 2
    hit KILL
}

look() {
    bases has_run || { say missing 'it is not known on this machine' && return; }
    follow "$rs_wait"
}

# A run whose start was tried twice is not among them: its folder is what keeps the other start from starting it again.
forget() {
    for rs_id in $rs_ids; do
        ! bases has_run || { judge && [ "$rs_state" != running ] && [ "$rs_state" != starting ] && rm -rf "$rs_dir"; }
    done
}

# Ended runs that nobody asked for: those of yesterday, and the oldest beyond 1 GiB.
prune() {
    cd "$rs_base" || return
    rs_sum=0
    # shellcheck disable=SC2012 # our own names
    for rs_id in $(ls -dt run-*); do
        rs_dir=$rs_base/$rs_id
        rs_size=$(du -sk "$rs_id" | cut -f1)
        rs_sum=$((rs_sum + rs_size))
        [ -d "$rs_id/begun" ] && { [ "$rs_sum" -gt 1048576 ] || [ -n "$(find "$rs_id" -prune -mtime +0)" ]; } || continue
        is_alive || rm -rf "$rs_dir"
    done
} 2>/dev/null

main() {
    rs_uid=$(id -u)
    bases is_usable || fail folder 'no private folder for runs: no place for it is ours and writable'
    say here "$(place)" "$(clock)" "$rs_base/$rs_id"
    case $rs_verb in
    hello) prune </dev/null >/dev/null 2>&1 & say done "$HOME" ;;
    start | look | stop) "$rs_verb" "$@" ;;
    forget) forget && say done ;;
    esac
}
