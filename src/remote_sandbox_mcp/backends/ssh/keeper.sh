#!/bin/sh
# One run, from its start to its end: launch | keep | front. Follows runner.sh, whose header tells the protocol.
#
# A pipeline, because a command below anything that sh starts with & would ignore interrupts for ever.
#   launch   starts the command and waits for it
#   keep     takes one event after the other from the folder's pipe and writes the end; it outlives the line
#   front    tells the line, and dies with it
# They redirect with exec: beside a redirected call sh keeps the old file open, and the line with it.
# Events: pid N, exit N, eof (of a stream), timed_out, stopped, kill, look, late, give_up.
# shellcheck disable=SC2154 # what is asked is assigned by the near side

rs_block=65536
rs_most=67108864
rs_segment=4194304

# The command in a session of its own; where there is no setsid, in a group of its own, if this sh can make one. The
# output pipes open only when keep is there to take events, so that none is lost.
launch() {
    exec </dev/null >/dev/null 2>&1
    # shellcheck disable=SC2016 # for the shell that it starts
    set -- "$(command -v sh)" -c 'echo "pid $$" 1<>"$0"; exec "$@"' "$rs_dir/events" "$@"
    if rs_setsid=$(command -v setsid); then set -- "$rs_setsid" "$@"; else set -m; fi
    (
        exec >"$rs_dir/out.pipe" 2>"$rs_dir/err.pipe"
        # The variables do not pass through arguments, which everybody on the machine may read.
        eval "$rs_exports"
        # A bash that takes itself for the first shell of an SSH session reads .bashrc, as the login shell has done.
        case ${SHLVL-} in '' | 0 | *[!0-9]*) SHLVL=1 ;; esac
        export SHLVL
        exec "$@"
    )
    echo "exit $?" 1<>"$rs_dir/events"
}

keep() {
    exec </dev/null 3<>"$rs_dir/events" 4>&1 >/dev/null 2>&1
    # Front may be gone with its line.
    trap '' PIPE
    # Opened by sh itself, /proc/self is this very process.
    # shellcheck disable=SC2034 # the rest of the line
    read -r rs_pid rs_rest </proc/self/stat || { sh -c 'echo "$PPID"' >"$rs_dir/pid" && read -r rs_pid <"$rs_dir/pid"; }
    echo "$rs_pid $(birth "$rs_pid") $(boot) $(clock)" >"$rs_dir/keeper"
    collect out &
    rs_out=$!
    collect err &
    rs_err=$!
    rs_timers='' rs_lates=0 rs_ending=exited rs_status='' rs_group='' rs_streams=2 rs_gone='' rs_killing='' rs_over=''
    # A cut line does not give a command more time.
    after "$rs_timeout" "$rs_timeout_whole" timed_out
    echo claimed >&4
    while [ -z "$rs_over" ] && read -r rs_event rs_value <&3; do
        heed
    done
    finish
}

heed() {
    case $rs_event in
    pid) note_group ;;
    exit) rs_status=$rs_value ;;
    eof) rs_streams=$((rs_streams - 1)) ;;
    timed_out | stopped) break_off ;;
    kill) rs_killing=yes ;;
    late) finish_or_wait ;;
    give_up) rs_over=yes ;;
    esac
    # Again and again, because a group may still be growing.
    [ -z "$rs_killing" ] || hit KILL
    if [ -z "$rs_gone" ] && is_gone; then
        rs_gone=yes
        after 0.2 1 late
    fi
    [ -z "$rs_gone" ] || [ "$rs_streams" -gt 0 ] || rs_over=yes
}

# A process left behind may hold a stream for ever; what was printed before the end must still have been collected.
finish_or_wait() {
    rs_lates=$((rs_lates + 1))
    if [ "$rs_lates" -gt 25 ] || is_drained; then rs_over=yes; else after 0.2 1 late; fi
}

# Whether who reads the open streams sleeps: with anything in its pipe it would not.
is_drained() {
    [ -r /proc/self/stat ] || return 0
    rs_idle=0
    for rs_stat in /proc/[0-9]*/stat; do
        read -r rs_line <"$rs_stat" || continue
        # shellcheck disable=SC2086 # a row of numbers
        set -- ${rs_line##*) }
        case "$1 $2 $rs_line" in *'(ls)'*) ;; "S $rs_out "* | "S $rs_err "*) rs_idle=$((rs_idle + 1)) ;; esac
    done
    [ "$rs_idle" -ge "$rs_streams" ]
}

note_group() {
    rs_group=$rs_value
    echo "$rs_group $(birth "$rs_group")" >"$rs_dir/group"
    [ "$rs_ending" = exited ] || strike
}

break_off() {
    if [ -z "$rs_status" ] && [ "$rs_ending" = exited ]; then
        rs_ending=$rs_event
        [ -z "$rs_group" ] || strike
    fi
}

# The command is no more; after a strike, its group too.
is_gone() {
    [ -n "$rs_status" ] && { [ "$rs_ending" = exited ] || [ -z "$(members)" ]; }
}

strike() {
    hit TERM
    hit CONT
    after 2 2 kill
    after 4 4 give_up
    after 0.2 1 look 19
}

# after SECONDS WHOLE_SECONDS EVENT [TIMES]
after() {
    timer "$@" &
    rs_timers="$rs_timers $!"
}

# It may be told to end, and leaves no sleep behind: some containers have nobody who would bury it.
timer() {
    exec 4>&-
    end_with_sleep
    rs_turn=${4:-1}
    while [ "$rs_turn" -gt 0 ]; do
        doze "$1" || doze "$2"
        echo "$3" >&3
        rs_turn=$((rs_turn - 1))
    done
}

# Before the first sleep $! is somebody else.
end_with_sleep() {
    rs_other=$!
    trap '[ "$!" = "$rs_other" ] || { kill "$!" && wait "$!"; }; exit' TERM
}

doze() {
    sleep "$1" >/dev/null 2>&1 3>&- &
    wait "$!"
}

hit() {
    kill "-$1" "-$rs_group" || kill "-$1" "$rs_group"
} 2>/dev/null

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
    rs_left=$(members | head -n 20 | tr '\n' ' ')
    rs_end="$rs_ending ${rs_status:-137} $(clock) $rs_left"
    echo "$rs_end" >"$rs_dir/end.new" && mv -f "$rs_dir/end.new" "$rs_dir/end"
    echo "over $rs_end" >&4
    # shellcheck disable=SC2086 # a row of numbers
    kill $rs_timers
    # shellcheck disable=SC2086 # a row of numbers
    wait $rs_timers
}

# collect NAME: the first 64 MiB into its file, then the last 4 to 8 MiB into two, and how many bytes lie between.
collect() {
    exec <"$rs_dir/$1.pipe" 4>&-
    if pour "$rs_dir/$1" "$rs_most"; then
        rs_dropped=0
        while pour "$rs_dir/$1.new" "$rs_segment"; do
            size "$rs_dir/$1.old"
            rs_dropped=$((rs_dropped + rs_size))
            mv -f "$rs_dir/$1.new" "$rs_dir/$1.old" && echo "$rs_dropped" >"$rs_dir/$1.gone"
        done
    fi
    echo eof >&3
}

# pour FILE SIZE: append standard input until the file has that size; fails at the end of the input. dd, because it
# passes on at once what it reads, and never reads more than it was asked for.
pour() {
    rs_size=0
    [ ! -s "$1" ] || size "$1"
    while [ "$rs_size" -lt "$2" ]; do
        rs_before=$rs_size
        rs_count=$((($2 - rs_size + rs_block - 1) / rs_block))
        # Neither a full disk nor a result that has been told may end whoever still prints.
        if [ -f "$rs_dir/end" ] || ! dd bs="$rs_block" count="$((rs_count < 256 ? rs_count : 256))" >>"$1"; then
            cat >/dev/null
            return 1
        fi
        rs_size=0
        size "$1"
        [ "$rs_size" -gt "$rs_before" ] || return 1
    done
}

front() {
    exec 2>/dev/null
    rs_beats=''
    while read -r rs_word rs_end && [ "$rs_word" = claimed ]; do
        say claimed
        beats &
        rs_beats=$!
    done
    if [ -n "$rs_beats" ]; then
        kill "$rs_beats"
        wait "$rs_beats"
    fi
    tell
}

# A line that nobody hears any more is let go of: its sshd waits for the end of the shell that it started.
beats() {
    trap '' PIPE
    end_with_sleep
    while doze 2; do
        beat || { kill -9 "$$" && exit; }
    done
}
