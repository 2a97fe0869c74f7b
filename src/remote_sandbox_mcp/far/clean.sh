#!/bin/sh
# Removes what use has left in this account: records of runs and jobs that have ended, programs that were lent. POSIX sh.
# $1: "dry" to change nothing. What runs, waits in a queue, or has no record of its end is kept.
#
# Output: "removed KIND PATH" and "kept KIND PATH", one line each; KIND is run, job or program. A line "blind" alone
# says that processes cannot be seen here, so that nothing was removed.

LC_ALL=C
export LC_ALL
home=${HOME:-/nowhere}
state=$home/.local/state/remote-sandbox
uid=$(id -u)

[ -r /proc/self/cmdline ] || {
    echo blind
    exit 0
}
# Paths that processes of this user have open, are in, or were started with.
used=$(
    # shellcheck disable=SC2012 # find reads no links in old busyboxes, and paths of ours have no odd characters
    ls -l /proc/[0-9]*/fd /proc/[0-9]*/cwd 2>/dev/null | sed -n 's/.* -> //p'
    cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep remote-sandbox
)

# A real folder of this user, not a link to one.
is_ours() {
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]
}

in_use() {
    case $used in *"$1"*) return 0 ;; esac
    return 1
}

# A run has a record with a line for its end; a job, and a run without Python, a file for it.
has_ended() {
    [ -s "$1/end" ] || [ -s "$1/fate" ] || { [ -f "$1/run" ] && [ "$(grep -c . "$1/run")" -gt 1 ]; }
}

# drop KIND PATH
drop() {
    [ "$dry" = dry ] || rm -rf "$2" 2>/dev/null || return 0
    printf 'removed %s %s\n' "$1" "$2"
}

# ended KIND PATH: a record, which is dropped if it is over.
ended() {
    is_ours "$2" || return 0
    if ! in_use "$2" && has_ended "$2"; then drop "$1" "$2"; else printf 'kept %s %s\n' "$1" "$2"; fi
}

# unused KIND PATH
unused() {
    is_ours "$2" || return 0
    if in_use "$2"; then printf 'kept %s %s\n' "$1" "$2"; else drop "$1" "$2"; fi
}

dry=${1:-}
part=${REMOTE_SANDBOX_PLACE:+-$REMOTE_SANDBOX_PLACE}
for base in "/tmp/remote-sandbox-$uid$part" "/dev/shm/remote-sandbox-$uid" "$home/.cache/remote-sandbox$part"; do
    is_ours "$base" || continue
    for path in "$base"/run-*; do ended run "$path"; done
    for path in "$base"/job-* "$base"/jobs/*/job-*; do ended job "$path"; done
done
if is_ours "$state"; then
    for path in "$state"/jobs/*/job-* "$state"/shell/*/job-*; do ended job "$path"; done
fi
unused program "$home/.local/share/remote-sandbox"
# Folders that are empty now; the others stay.
[ "$dry" = dry ] || rmdir "$state"/jobs/* "$state"/jobs "$state"/shell/* "$state"/shell "$state" 2>/dev/null
exit 0
