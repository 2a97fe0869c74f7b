#!/bin/sh
# Leases NVIDIA GPUs where there is no Python, by flock(1) of util-linux or busybox: the same files and the same rules as
# far/jobs/cards.py. Goes after jobs.sh.
#   RSM_CARDS    how many cards a job needs, empty for none; RSM_CARD_MB: the memory that each must have free
#   RSM_RUN_FOR  how many seconds the caller says that the job runs, or 0
#
# A job's folder also has: wanted (these three), cards (the UUIDs that it holds), busy (why it could not begin: the
# first line says what cannot be had, each further one why a card is not free).
# shellcheck disable=SC2034,SC2153,SC2154 # they read what the others found, and what is asked is in the environment

# A job in place of another wants what that one wanted.
want_cards() {
	if [ -z "${RSM_CARDS-}" ] && [ -n "$RSM_INSTEAD" ] && [ -s "$rs_base/$RSM_INSTEAD/wanted" ]; then
		read -r RSM_CARDS RSM_CARD_MB RSM_RUN_FOR <"$rs_base/$RSM_INSTEAD/wanted"
		export RSM_CARDS RSM_CARD_MB RSM_RUN_FOR
	fi
}

note_wanted() {
	[ -z "${RSM_CARDS-}" ] || note wanted '%s\n' "$RSM_CARDS $RSM_CARD_MB $RSM_RUN_FOR"
}

# with_cards COMMAND...: runs it while the cards are leased. If they cannot be had, no keeper begins this job any more.
with_cards() {
	rs_leased='' rs_count=0 rs_busy='' rs_free=0 rs_all=0 rs_rested=''
	if [ -z "${RSM_CARDS-}" ]; then
		"$@"
	elif ! command -v flock; then
		refuse_cards 'GPUs are leased by python3, or by flock of util-linux; neither is there'
	elif ! command -v nvidia-smi; then
		refuse_cards 'there is no nvidia-smi that tells of a GPU'
	else
		rs_lease_folder=$(lease_folder) && list_cards && { lease_cards "$rs_free_cards" "$@" || lack_cards; }
	fi
} >/dev/null 2>&1

refuse_cards() {
	! withdraw || note busy '%s\n' "$1"
}

lack_cards() {
	rs_value="$RSM_CARDS GPU"
	[ "$RSM_CARDS" = 1 ] || rs_value=${rs_value}s
	[ "$RSM_CARD_MB" = 0 ] || rs_value="$rs_value with $RSM_CARD_MB MB free"
	refuse_cards "$rs_value cannot be had now: $rs_free of $rs_all are free$(printf %s "$rs_busy" | sort)"
}

# Root made these for everybody: a real folder, sticky, open to all.
lease_folder() {
	for rs_folder in /run/lock /var/lock /tmp; do
		case $(stat -c '%F %a %u' "$rs_folder") in 'directory 1777 0') echo "$rs_folder" && return ;; esac
	done
	refuse_cards 'there is no folder that all users share (/run/lock or /tmp), so no GPU can be leased'
	return 1
}

# smi WORDS...: sets rs_said; a broken driver may never answer.
smi() {
	if command -v timeout; then set -- timeout 12 nvidia-smi "$@"; else set -- nvidia-smi "$@"; fi >/dev/null
	rs_said=$(LC_ALL=C "$@" 2>&1 </dev/null)
}

# Sets rs_free_cards to lines `SIZE UUID NAME` of those that are free, smallest first; others go to rs_busy.
list_cards() {
	rs_columns=index,uuid,memory.total,memory.used,compute_mode
	smi --query-gpu=$rs_columns,mig.mode.current --format=csv,noheader,nounits || {
		case $rs_said in *'not a valid field'*) smi --query-gpu=$rs_columns --format=csv,noheader,nounits ;; *) false ;; esac
	} || {
		refuse_cards "nvidia-smi failed: $(printf %s "$rs_said" | tr -s '\n' ' ' | head -c 100)"
		return 1
	}
	rs_rows=$rs_said rs_slices='' rs_free_cards=''
	smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader,nounits || {
		refuse_cards "nvidia-smi failed: $(printf %s "$rs_said" | tr -s '\n' ' ' | head -c 100)"
		return 1
	}
	rs_apps=$rs_said
	case $rs_rows in *', Enabled'*) smi -L && rs_slices=$rs_said ;; esac
	while IFS=', ' read -r rs_index rs_uuid rs_total rs_used rs_mode rs_mig; do
		case $rs_index:$rs_uuid in *[!0-9]*:* | *:*[!A-Za-z0-9._/-]* | *:) continue ;; esac
		if [ "$rs_mig" = Enabled ]; then
			rs_whole=$rs_uuid
			while read -r rs_uuid rs_total rs_index; do
				[ -z "$rs_uuid" ] || judge_card "MIG $rs_index" 0 "$rs_whole"
			done <<-EOF
				$(printf '%s\n' "$rs_slices" | slices_of "$rs_whole" "$rs_index")
			EOF
		else
			judge_card "GPU $rs_index" "$rs_used" "$rs_uuid"
		fi
	done <<-EOF
		$rs_rows
	EOF
	rs_free_cards=$(printf '%s' "$rs_free_cards" | sort -s -n -k 1,1)
	[ "$rs_all" -gt 0 ] || { refuse_cards 'nvidia-smi lists no GPU' && return 1; }
}

# slices_of UUID INDEX: lines `UUID SIZE NAME` of a card's slices, from nvidia-smi -L; the size is in their profile.
slices_of() {
	rs_here=''
	while read -r rs_line; do
		case $rs_line in
		"GPU $2: "*"(UUID: $1)") rs_here=yes ;;
		'GPU '*) rs_here='' ;;
		'MIG '*'(UUID: MIG-'*')')
			[ -n "$rs_here" ] || continue
			rs_value=${rs_line##*(UUID: } rs_size=${rs_line%%gb*}
			rs_number=${rs_line##*Device} rs_number=${rs_number%%:*}
			case ${rs_value%)}:${rs_size##*.} in *[!A-Za-z0-9._/-]*:* | *:*[!0-9]*) continue ;; esac
			echo "${rs_value%)} $((${rs_size##*.} * 1024)) ${rs_number##* } of GPU $2"
			;;
		esac
	done
}

# judge_card NAME USED_MB WHOLE: decides whether rs_uuid, which is WHOLE or a slice of it, is free.
judge_card() {
	rs_all=$((rs_all + 1)) rs_why='' rs_room=-1
	case $rs_total:$2 in *[!0-9:]* | :* | *:) ;; *) rs_room=$((rs_total - $2)) ;; esac
	rs_users=$(users_of "$rs_uuid" "$3")
	if [ "$rs_mode" = Prohibited ]; then
		rs_why='admits no process (compute mode Prohibited)'
	elif [ -n "$rs_users" ]; then
		rs_why="is used by $rs_users"
	elif [ "$rs_room" -ge 0 ] && { [ "$2" -gt 512 ] || [ "$2" -gt "$((rs_total / 10))" ]; }; then
		rs_why="has $2 MB in use by processes that are not shown"
	elif [ "$RSM_CARD_MB" -gt 0 ] && { [ "$rs_room" -lt 0 ] || [ "$((rs_total + 1024))" -lt "$RSM_CARD_MB" ]; }; then
		rs_why="has $rs_room MB free"
		[ "$rs_room" -ge 0 ] || rs_why='has an unknown number of MB free'
	else
		[ "$rs_room" -ge 0 ] || rs_total=0
		rs_free_cards="$rs_free_cards$rs_total $rs_uuid $1
"
		rs_free=$((rs_free + 1))
		return
	fi
	busy_card "$1 $rs_why"
}

busy_card() {
	rs_busy="$rs_busy
$1"
}

# users_of UUID WHOLE: who computes on it, by name. An older driver names the whole card for a process in a slice.
users_of() {
	printf '%s\n' "$rs_apps" | while IFS=', ' read -r rs_card rs_pid _; do
		case $rs_pid in '' | *[!0-9]*) continue ;; esac
		case $rs_card in "$1" | "$2") stat -c %U "/proc/$rs_pid" || echo "process $rs_pid" ;; esac
	done 2>/dev/null | sort -u | head -n 9 | tr '\n' , | sed 's/,$//; s/,/, /g'
}

# lease_cards LINES COMMAND...: locks the cards of the lines until there are enough, then runs the command; fails if there
# are not. Each lock is held by a redirection around the rest, so that all are released together.
lease_cards() {
	rs_lines=$1
	shift
	if [ "$rs_count" = "$RSM_CARDS" ]; then
		hold_cards "$@"
		return 0
	fi
	while [ -n "$rs_lines" ]; do
		rs_line=${rs_lines%%"
"*}
		case $rs_lines in *"
"*) rs_lines=${rs_lines#*"
"} ;; *) rs_lines='' ;; esac
		rs_name=${rs_line#* }
		rs_uuid=${rs_name%% *} rs_name=${rs_name#* }
		rs_file=$rs_lease_folder/rsmcp-gpu-$(printf %s "$rs_uuid" | tr / _)
		can_be_leased || continue
		lease_one "$@" 9<"$rs_file"
		case $? in
		0) return 0 ;;
		3) return 1 ;;
		esac
		rs_free=$((rs_free - 1))
		busy_card "$rs_name $(holder_of "$rs_file")"
	done
	return 1
}

# Whether its file is, or now becomes, a plain one that has this name alone and may be read.
can_be_leased() {
	[ -e "$rs_file" ] || [ -L "$rs_file" ] || (umask 0 && set -C && : >"$rs_file") || :
	case $(stat -c '%h %F' "$rs_file") in '1 regular'*) [ ! -r "$rs_file" ] || return 0 ;; esac
	rs_free=$((rs_free - 1))
	busy_card "$rs_name cannot be leased: $rs_file: it is not a plain file that may be read"
	return 1
}

# lease_one COMMAND...: fails with 3 if too few other cards could be had, else because somebody holds this one.
lease_one() {
	# Somebody may just be letting it go.
	flock -n 9 || { [ -z "$rs_rested" ] && rs_rested=yes && nap "0.$(($$ % 3 + 1))" && flock -n 9; } || return 1
	# Its owner may have removed it meanwhile.
	[ "$(stat -L -c %d:%i /proc/self/fd/9)" = "$(stat -c %d:%i "$rs_file")" ] || return 1
	rs_count=$((rs_count + 1)) rs_leased=$rs_leased${rs_leased:+,}$rs_uuid
	rs_record="user $(id -un)
job $RSM_SESSION
pid $$
since $(date +%s)"
	[ "${RSM_RUN_FOR%.*}" = 0 ] || rs_record="$rs_record
until $(($(date +%s) + ${RSM_RUN_FOR%.*}))"
	# Through the descriptor: the name may be another file's by now.
	printf '%s\n' "$rs_record" >/proc/self/fd/9 || :
	lease_cards "$rs_lines" "$@"
	rs_status=$?
	# By unlocking: a process that the command left behind has the descriptor, too.
	printf '' >/proc/self/fd/9 || :
	flock -u 9
	[ "$rs_status" = 0 ] || return 3
}

# holder_of FILE: who holds a lease: of the user, the owner of the keeper or of the process that locked it is believed
# before what is written there.
holder_of() {
	rs_row=$(head -c 600 "$1" | tr -dc '[:print:]\n')
	rs_pid=$(grep "^[0-9]*: FLOCK .*:$(stat -c %i "$1") 0 EOF" /proc/locks | head -n 1 | tr -s ' ' | cut -d ' ' -f 5)
	rs_value=$(stat -c %U "/proc/$(recorded pid '[0-9]\{1,9\}')" || stat -c %U "/proc/${rs_pid:-none}" ||
		recorded user '[^ ]\{1,64\}')
	rs_name=$(recorded job '[A-Za-z0-9_@%+=,-]\{1,60\}') rs_until=$(recorded until '[0-9]\{1,11\}')
	[ -z "$rs_until" ] || rs_until=$(date -u -d "@$rs_until" '+ until %Y-%m-%d %H:%M UTC')
	echo "is leased by ${rs_value:-somebody}${rs_name:+ (job $rs_name)}$rs_until"
}

# recorded WORD PATTERN: the value of that line of the record in rs_row.
recorded() {
	printf '%s\n' "$rs_row" | sed -n "s/^$1 \\($2\\)\$/\\1/p" | head -n 1 | grep .
}

# hold_cards COMMAND...: notes which cards the job has, and lets its command see no others.
hold_cards() {
	note cards '%s\n' "$rs_leased"
	RSM_EXPORTS="${RSM_EXPORTS:+$RSM_EXPORTS; }export CUDA_VISIBLE_DEVICES=$rs_leased"
	"$@"
}
