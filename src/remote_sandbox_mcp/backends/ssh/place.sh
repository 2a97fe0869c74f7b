#!/bin/sh
# Where runs live and whether they do: owner-only folders, one per run. Goes before runner.sh, which tells the protocol.
# shellcheck disable=SC2154,SC2034 # what is asked is assigned by the near side; what is found is read by the others

# nap SECONDS WHOLE_SECONDS: not every sleep knows fractions.
nap() {
    sleep "$1" || sleep "$2"
} </dev/null >/dev/null 2>&1

clock() {
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
        kill -0 "$1" && { ps -o lstart= -p "$1" || echo none; } | tr -s ' ' _
    fi
} 2>/dev/null

# Not the time of the boot, which other systems would tell: it moves when the clock is set.
boot() {
    cat /proc/sys/kernel/random/boot_id || echo none
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
