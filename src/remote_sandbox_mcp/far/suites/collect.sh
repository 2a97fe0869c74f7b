#!/bin/sh
# Brings what a test run wrote, and removes its place. POSIX sh with find.
# $1: the run's id. $2: bytes of one file, $3: of all of them, at most.
#
# Output, after "@@ collect 1" (what comes before was printed by start-up files):
#
#   @@ plan        what look.sh or run.sh was given
#   @@ report      the report that the runner was asked for
#   @@ file NAME   a report or a coverage summary below the folder of the tests, newer than the run's start
#   @@ cut NAME    of this one not everything is here
#   @@ end         nothing is missing
#
# The lines of a file follow, each after a space.

LC_ALL=C
export LC_ALL
place=${TMPDIR:-/tmp}/rsmcp-tests-$1
most=$2
left=$3
trap 'rm -rf -- "$place"' EXIT
trap 'exit 143' HUP INT TERM

# bring WORD PATH
bring() {
    size=$(wc -c <"$2") || return
    size=$((size))
    limit=$most
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -gt 0 ]; then
        printf '@@ %s\n' "$1"
        # The echo ends a last line that has no end.
        { head -c "$limit" "$2"; echo; } | sed 's/^/ /'
    fi
    [ "$size" -le "$limit" ] || printf '@@ cut %s\n' "${1#* }"
    left=$((left - size))
    [ "$left" -ge 0 ] || left=0
}

echo '@@ collect 1'
[ ! -f "$place/plan" ] || bring plan "$place/plan"
[ ! -f "$place/report" ] || bring report "$place/report"
if [ -f "$place/mark" ] && cd -- "$(cat "$place/folder")"; then
    find . -maxdepth 8 \( -name node_modules -o -name .git -o -name .venv -o -name venv -o -name site-packages \) -prune \
        -o -type f -newer "$place/mark" \( -name 'junit*.xml' -o -name 'TEST-*.xml' -o -name 'report.xml' \
        -o -name '*-junit.xml' -o -path '*/surefire-reports/*.xml' -o -path '*/failsafe-reports/*.xml' \
        -o -path '*/test-results/*.xml' -o -path '*/test-reports/*.xml' \
        -o -name 'coverage.xml' -o -name 'lcov.info' -o -name 'coverage-summary.json' \) -print 2>/dev/null |
        head -n 300 >"$place/found"
    while IFS= read -r file; do
        [ ! -r "$file" ] || bring "file $file" "$file"
    done <"$place/found"
fi
echo '@@ end'
