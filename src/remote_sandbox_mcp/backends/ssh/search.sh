#!/bin/sh
# Finds files by name and lines by pattern, where there is no Python. POSIX sh with find, grep, sort, tr, sed, xargs.
#
# Sent to `sh -s` like runner.sh, with the same kind of answer: bytes, then a line "TOKEN NAME VALUES" about them.
#   rs_root       an absolute path: a folder, or one file, to which rs_glob does not apply
#   rs_glob       what a name must fit, as find understands it
#   rs_pattern    an extended regular expression, or empty to find names only; rs_case: i to ignore case
#   rs_most       how many names, and how many lines of one file, are enough
#
#   here KIND     comes first: folder, or file where the root is one; paths are then below the folder that it is in
#   beat          it goes on
#   names         paths below the folder, "./" first, one per line, \001 for a line break in a name
#   lines         a path, a NUL, then NUMBER:TEXT lines of that file
#   large         a path: larger than 32 MiB, not searched
#   failed REASON MESSAGE, or ok: the end
# Complaints of find and grep go to standard error, in English.
# shellcheck disable=SC2154 # what is asked is assigned by the near side

say() {
    printf '\n%s %s\n' "$rs_token" "$*"
}

fail() {
    say failed "$@"
    exit
}

# A line that nobody hears any more ends the whole search: all of it is one process group.
beats() {
    exec 2>/dev/null
    trap '' PIPE
    trap 'kill "$rs_nap"; wait "$rs_nap"; exit' TERM
    while :; do
        sleep 2 >/dev/null &
        rs_nap=$!
        wait "$rs_nap"
        say beat || kill 0
    done
}

enter() {
    rs_start=. rs_kind=folder
    if [ -d "$rs_root" ]; then
        :
    elif [ -e "$rs_root" ] || [ -L "$rs_root" ]; then
        rs_start=./${rs_root##*/} rs_kind=file rs_glob='*' rs_root=${rs_root%/*}/
    else
        fail ENOENT 'No such file or directory'
    fi
    cd "$rs_root" 2>/dev/null || fail EACCES 'Permission denied'
}

# names TEST...: the paths that fit, in order, one per line.
names() {
    # shellcheck disable=SC2016 # for the shell that find starts
    find "$rs_start" -name .git -type d -prune -o -type f -name "$rs_glob" "$@" \
        -exec sh -c 'printf "%s\000" "$@"' sh {} + | tr '\n\000' '\001\n' | sort
}

find_names() {
    names | head -n "$rs_most"
    say names
}

find_lines() {
    rs_flags=E$rs_case
    # A grep that skips binary files spares us a look into each.
    rs_skips=''
    if echo x | grep -qI x && ! printf 'x\000\n' | grep -qI x; then rs_skips=I; fi 2>/dev/null
    rs_flags=$rs_flags$rs_skips
    rs_complaint=$(echo | grep "-q$rs_flags" -e "$rs_pattern" 2>&1)
    [ "$?" -le 1 ] || fail pattern "the pattern is not a regular expression for grep -E: ${rs_complaint#grep: }"
    rs_names=$(names ! -size +65536)
    # A name with a line break cannot go through xargs.
    printf '%s\n' "$rs_names" | grep "$rs_break" | tell_lines
    printf '%s\n' "$rs_names" | grep -v "$rs_break" | sed 's/[^A-Za-z0-9]/\\&/g' |
        xargs grep "-l$rs_flags" -e "$rs_pattern" /dev/null | tell_lines
    names -size +65536 2>/dev/null | while IFS= read -r rs_name; do
        printf %s "$rs_name"
        say large
    done
}

tell_lines() {
    while IFS= read -r rs_name; do
        case $rs_name in
        *"$rs_break"*)
            rs_name=$(printf %s "$rs_name" | tr '\001' '\n' && echo .)
            rs_name=${rs_name%.}
            ;;
        esac
        [ -n "$rs_skips" ] || is_text "$rs_name" || continue
        printf '%s\000' "$rs_name"
        grep "-n$rs_flags" -e "$rs_pattern" "$rs_name" </dev/null | head -n "$rs_most" | cut -b 1-2000
        say lines
    done
}

is_text() {
    [ -z "$(dd bs=8192 count=1 2>/dev/null <"$1" | tr -cd '\000' | tr '\000' x)" ]
}

main() {
    LC_ALL=C
    export LC_ALL
    rs_break=$(printf '\001')
    for rs_tool in find grep sort tr sed xargs head cut; do
        command -v "$rs_tool" >/dev/null || fail unsupported "there is no $rs_tool on this machine"
    done
    enter
    say here "$rs_kind"
    beats &
    rs_beats=$!
    if [ -n "$rs_pattern" ]; then find_lines; else find_names; fi
    kill "$rs_beats"
    wait "$rs_beats" 2>/dev/null
    say ok
}
