#!/bin/sh
# Files where there is no Python: get, put, list, search. Goes after place.sh.
#   RSM_PATH      an absolute path
#   RSM_BASE      the folder for runs, if it is known
#   RSM_TOKEN     marks records and names temporary files; random, so that no file can contain or have it on purpose
#   get           RSM_OFFSET (from the end if negative) or RSM_LINE and RSM_LINES; RSM_LIMIT bytes, and one more
#   put           RSM_DATA in base64, or RSM_FROM: a file to put in place; RSM_EXPECTED: the version to be replaced
#   list          RSM_DEPTH (1, or empty for any), RSM_COUNT entries
#   search        RSM_GLOB for names; RSM_LITERAL, perhaps empty, and RSM_CASE (i to ignore it) for lines, else unset;
#                 RSM_COUNT names, or bytes, of what is found after RSM_SKIP files
#
# complaint TEXT  the message of a program that failed, in English; the error is its last part
# refused KIND    put: a link, a dir, or other; exists; stale
# found MODE SIZE, version TEXT   the file itself
# start OFFSET, data BYTES        get; without data if it cannot be read
# created         put: there was no file before
# entries RECORDS                 list: TOKEN MODE SIZE MTIME PATH, a line break
# names, large    search: paths, one per line, \001 for a line break in a name
# lines RECORDS   search: TOKEN, a path, a NUL, then NUMBER:TEXT lines that hold the literal
# below           the folder to which paths with a leading dot belong
# Complaints of find and grep go to standard error.
# shellcheck disable=SC2153 # what is asked comes in the environment

about='found %f %s
version %i-%s-%y-%z'
part=''
LC_ALL=C
export LC_ALL

complain() {
	[ -z "$part" ] || rm -f "$part"
	tell complaint "$1"
	exit
}

try() {
	complaint=$("$@" 2>&1) || complain "$complaint"
}

# describe STAT_WORDS...
describe() {
	described=$(stat "$@" -c "$about" "$RSM_PATH" 2>&1) || complain "$described"
	printf '%s\n' "$described"
}

get() {
	if [ -f "$RSM_PATH" ] && [ -r "$RSM_PATH" ]; then
		# Opened once, so that size and version belong to the bytes that are read.
		get_part 3<"$RSM_PATH"
	else
		describe -L
	fi
}

get_part() {
	file=/proc/self/fd/3 start=$RSM_OFFSET
	stat -L -c "$about" "$file"
	if [ -n "$RSM_LINES" ]; then
		start=$(head -n "$((RSM_LINE - 1))" "$file" | wc -c)
	elif [ "$start" -lt 0 ]; then
		start=$(($(stat -L -c %s "$file") + start))
		[ "$start" -ge 0 ] || start=0
	fi
	printf 'start %d\ndata %s\n' "$start" "$(tail -c "+$((start + 1))" "$file" | lines_of | head -c "$((RSM_LIMIT + 1))" | coded)"
}

lines_of() {
	if [ -n "$RSM_LINES" ]; then head -n "$RSM_LINES"; else cat; fi
}

put() {
	check
	folder=${RSM_PATH%/*}/
	[ -d "$folder" ] || try mkdir -p "$folder"
	part=$folder.remote-sandbox-$RSM_TOKEN
	try bring
	try furnish
	if [ "${RSM_EXPECTED-any}" != any ]; then
		lock
		check
	fi
	try mv -f "$part" "$RSM_PATH"
	[ "$was" != none ] || echo created
	describe
}

# Sets `was` to what is there; refuses and exits if that may not be replaced.
check() {
	was=none version=''
	if [ -L "$RSM_PATH" ]; then
		refuse link
	elif [ -f "$RSM_PATH" ]; then
		was='file'
	elif [ -d "$RSM_PATH" ]; then
		refuse dir
	elif [ -e "$RSM_PATH" ]; then
		refuse other
	fi
	if [ "${RSM_EXPECTED-any}" != any ]; then
		[ -n "$RSM_EXPECTED" ] || [ "$was" = none ] || refuse exists
		[ "$was" = none ] || version=$(stat -c "${about##* }" "$RSM_PATH")
		[ "$version" = "$RSM_EXPECTED" ] || refuse stale
	fi
	[ "$was" = none ] || [ -n "${RSM_FORCE-}" ] || case $(stat -c %A "$RSM_PATH") in ??w*) ;; *) refuse read_only ;; esac
}

refuse() {
	rm -f "$part" "${RSM_FROM-}"
	printf 'refused %s\n' "$1"
	exit
}

bring() {
	if [ -n "${RSM_FROM-}" ]; then
		mv -f "$RSM_FROM" "$part"
	else
		printf %s "$RSM_DATA" | base64 -d >"$part"
	fi
}

# Gives the new file the owner and mode of the one that it replaces, or the default mode.
furnish() {
	if [ "$was" = none ]; then
		[ -z "${RSM_FROM-}" ] || chmod '=rw' "$part"
		return
	fi
	# shellcheck disable=SC2046 # two words
	set -- $(stat -c '%u:%g %a' "$RSM_PATH")
	[ "$(id -u)" != 0 ] || chown "$1" "$part"
	chmod "$2" "$part"
}

# Lets one writer at a time be between its check and its rename. A folder that serves as lock is ignored after two
# seconds: a killed writer may have left it.
lock() {
	if [ -r "$folder" ] && command -v flock >/dev/null; then
		exec 9<"$folder"
		flock 9
	elif [ -n "${RSM_BASE-}" ]; then
		lock=$RSM_BASE/lock-$(stat -c %d-%i "$folder") turns=0
		trap 'rmdir "$lock" 2>/dev/null; echo over' EXIT
		until mkdir "$lock" || [ "$turns" -ge 40 ]; do
			sleep 0.05 || sleep 1
			turns=$((turns + 1))
		done
	fi 2>/dev/null
}

# Enters the folder for find and sets `start`: `.` for a folder, or the name of a single file.
enter() {
	start=. below=$RSM_PATH
	if [ ! -d "$RSM_PATH" ]; then
		[ -e "$RSM_PATH" ] || [ -L "$RSM_PATH" ] || try ls -d "$RSM_PATH"
		start=./${RSM_PATH##*/} below=${RSM_PATH%/*}/
	fi
	if ! cd "$below" 2>/dev/null || { [ "$start" = . ] && [ ! -r . ]; }; then
		complain "$below: Permission denied"
	fi
	tell below "$below"
}

# NUL-ended names as sorted lines, with \001 for a line break: not every sort and head knows NUL-ended records.
in_lines() {
	tr '\n\000' '\001\n' | sort
}

in_words() {
	tr '\n\001' '\000\n'
}

list() {
	enter
	printf 'entries %s\n' "$(named | in_lines | head -n "$RSM_COUNT" | in_words |
		xargs -0 -r stat -c "$RSM_TOKEN %f %s %Y %n" | coded)"
}

named() {
	if [ "$start" = . ]; then
		find . -mindepth 1 ${RSM_DEPTH:+-maxdepth "$RSM_DEPTH"} -print0
	else
		printf '%s\000' "$start"
	fi
}

# files TEST...: the files whose names match the glob.
files() {
	find -H "$start" -name .git -type d -prune -o -type f -name "$RSM_GLOB" "$@" -print0 | in_lines
}

search() {
	enter
	[ "$start" = . ] || RSM_GLOB='*'
	if [ "${RSM_LITERAL-unset}" = unset ]; then
		printf 'names %s\n' "$(files | head -n "$RSM_COUNT" | coded)"
		return
	fi
	break=$(printf '\001')
	# With a grep that skips binary files, not every file has to be checked for a NUL.
	skips=''
	if echo x | grep -qI x && ! printf 'x\000\n' | grep -qI x; then skips=I; fi 2>/dev/null
	flags=F$RSM_CASE$skips
	[ "$RSM_SKIP" -gt 0 ] || printf 'large %s\n' "$(files -size +65536 2>/dev/null | coded)"
	printf 'lines %s\n' "$(files ! -size +65536 | holding | tail -n "+$((RSM_SKIP + 1))" | found_lines | head -c "$RSM_COUNT" | coded)"
}

# The files that contain the literal. Those with a line break in their name are kept unchecked: grep -l prints lines.
holding() {
	all=$(cat)
	[ -n "$all" ] || return 0
	if [ -z "$RSM_LITERAL" ]; then
		printf '%s\n' "$all"
		return
	fi
	{
		printf '%s\n' "$all" | grep "$break"
		printf '%s\n' "$all" | grep -v "$break" | in_words | xargs -0 -r grep "-l$flags" -e "$RSM_LITERAL" /dev/null
	} | sort
}

found_lines() {
	while IFS= read -r name; do
		case $name in
		'') continue ;;
		*"$break"*)
			name=$(printf %s "$name" | tr '\001' '\n' && echo .)
			name=${name%.}
			;;
		esac
		[ -n "$skips" ] || is_text "$name" || continue
		printf '%s%s\000' "$RSM_TOKEN" "$name"
		grep "-n$flags" -e "$RSM_LITERAL" "$name" </dev/null
	done
}

is_text() {
	[ -z "$(dd bs=8192 count=1 2>/dev/null <"$1" | tr -cd '\000' | tr '\000' x)" ]
}
