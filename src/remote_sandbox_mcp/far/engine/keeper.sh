#!/bin/sh
# The main program of a container: ends when the container's time is over, and the engine removes the container then.
# It needs no help from outside, so a container ends even if its machine cannot be reached any more.
#
# POSIX sh, evaluated by `sh -c 'eval "$0"' TEXT UNTIL FILE`. $1: until when, in seconds since the machine's boot, or +N
# for N seconds from now, or 0 for ever. $2: the file in which a renewal writes another such time, in the same length.
# Sent without its comments, because `ps` shows this text as the container's first process.
until=$1 file=$2

# Starts no program: the container may be at its limit of processes.
look_at_clock() {
    read -r now _ </proc/uptime
    now=${now%%.*}
}

look_at_clock
case $until in +*) until=$((now + ${until#+})) ;; esac
# A shell that cannot start `sleep` exits; this replaces it by a new one in the same process.
trap 'exec /bin/sh -c "eval \"\$0\"" "$0" "$until" "$file"' EXIT
trap 'trap - EXIT; exit 0' TERM
# Written in its full length, so that a renewal can overwrite it on a full disk.
[ -s "$file" ] || printf '%-12s\n' "$until" 2>/dev/null >"$file" || :

while :; do
    fresh=
    [ ! -f "$file" ] || read -r fresh _ <"$file" || :
    case $fresh in '' | *[!0-9]* | ?????????????*) ;; *) until=$fresh ;; esac
    look_at_clock
    pause=5
    if [ "$until" -gt 0 ]; then
        [ "$now" -lt "$until" ] || break
        [ $((until - now)) -ge "$pause" ] || pause=$((until - now))
    fi
    sleep "$pause"
done
trap - EXIT
exit 0
