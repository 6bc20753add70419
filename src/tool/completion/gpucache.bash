# bash completion of gpucache. Made by scripts/coverage.py from src/tool/common/commands.def and src/options/options.def. Do not edit.
_gpucache() {
    local line=${COMP_LINE:0:COMP_POINT} command=${COMP_WORDS[1]} word words= valued= list= front= i
    word=${line##*[[:space:]]}
    COMPREPLY=()
    # a value may be the word behind its option
    case $command:${COMP_WORDS[COMP_CWORD - 1]} in
    run:--max-peak | run:--max-peak-or-none | run:--memory-fraction | run:--memory-limit | run:--report | run:--report-format | run:--report-signal | run:--report-interval | run:--reuse | run:--backend | run:--budget | run:--decay-ms | run:--stacks | run:--trace | run:--trace-events | run:--oom-snapshot | run:--file-mode | run:--live | run:--pinned | run:--disable | run:--log | options:--memory-fraction | options:--memory-limit | options:--report | options:--report-format | options:--report-signal | options:--report-interval | options:--reuse | options:--backend | options:--budget | options:--decay-ms | options:--stacks | options:--trace | options:--trace-events | options:--oom-snapshot | options:--file-mode | options:--live | options:--pinned | options:--disable | options:--log | top:--interval | report:--format | report:--events | report:--html | report:--folded | replay:--backend | replay:--delay | replay:--budget | replay:--limit | replay:--reuse | replay:--decay | replay:--memory | replay:--periods | replay:--device | replay:--format | ctl:--device | ctl:--timeout | metrics:--format | metrics:--listen | timeline:--last | snapshot:--last) [[ $word == *=* ]] || valued=${COMP_WORDS[COMP_CWORD - 1]}= ;;
    esac
    word=$valued$word
    if ((COMP_CWORD == 1)); then
        words='run options top report replay ctl metrics timeline snapshot help --help --version'
    elif [[ $command == run ]] && _gpucache_program; then
        return
    else
        case $command:$word in
        run:--report=*) words='stderr off' word=${word#*=} ;;
        run:--report-format=*) words='text json' word=${word#*=} ;;
        run:--report-signal=*) words='off' word=${word#*=} ;;
        run:--report-interval=*) words='off' word=${word#*=} ;;
        run:--reuse=*) words='barrier wait sync' word=${word#*=} ;;
        run:--backend=*) words='auto segments pages' word=${word#*=} ;;
        run:--budget=*) words='auto' word=${word#*=} ;;
        run:--decay-ms=*) words='never' word=${word#*=} ;;
        run:--trace=*) words='off' word=${word#*=} ;;
        run:--trace-events=*) words='all' word=${word#*=} ;;
        run:--oom-snapshot=*) words='off' word=${word#*=} ;;
        run:--live=*) words='on off' word=${word#*=} ;;
        run:--pinned=*) words='on off' word=${word#*=} ;;
        run:--disable=*) words='on off' word=${word#*=} ;;
        run:--log=*) words='error warn info debug' word=${word#*=} ;;
        run:--*=*) compopt -o default; return ;;
        run:-*) words='--one-pool --max-peak= --max-peak-or-none= --memory-fraction= --memory-limit= --report= --report-format= --report-signal= --report-interval= --reuse= --backend= --budget= --decay-ms= --stacks= --trace= --trace-events= --oom-snapshot= --file-mode= --live= --pinned= --disable= --log= --help' ;;
        options:--report=*) words='stderr off' word=${word#*=} ;;
        options:--report-format=*) words='text json' word=${word#*=} ;;
        options:--report-signal=*) words='off' word=${word#*=} ;;
        options:--report-interval=*) words='off' word=${word#*=} ;;
        options:--reuse=*) words='barrier wait sync' word=${word#*=} ;;
        options:--backend=*) words='auto segments pages' word=${word#*=} ;;
        options:--budget=*) words='auto' word=${word#*=} ;;
        options:--decay-ms=*) words='never' word=${word#*=} ;;
        options:--trace=*) words='off' word=${word#*=} ;;
        options:--trace-events=*) words='all' word=${word#*=} ;;
        options:--oom-snapshot=*) words='off' word=${word#*=} ;;
        options:--live=*) words='on off' word=${word#*=} ;;
        options:--pinned=*) words='on off' word=${word#*=} ;;
        options:--disable=*) words='on off' word=${word#*=} ;;
        options:--log=*) words='error warn info debug' word=${word#*=} ;;
        options:--*=*) compopt -o default; return ;;
        options:-*) words='--memory-fraction= --memory-limit= --report= --report-format= --report-signal= --report-interval= --reuse= --backend= --budget= --decay-ms= --stacks= --trace= --trace-events= --oom-snapshot= --file-mode= --live= --pinned= --disable= --log= --help' ;;
        top:--*=*) compopt -o default; return ;;
        top:-*) words='--once --kill --interval= --help' ;;
        top:*) words="$(gpucache top --once 2>/dev/null | awk 'NR > 1 && $2 + 0 == $2 { print $1 }')" ;;
        report:--format=*) words='text json' word=${word#*=} ;;
        report:--folded=*) words='byte-seconds peak live' word=${word#*=} ;;
        report:--*=*) compopt -o default; return ;;
        report:-*) words='--format= --events= --each --compare --html= --folded= --help' ;;
        report:*) words="$(gpucache top --once 2>/dev/null | awk 'NR > 1 && $2 + 0 == $2 { print $1 }')" && compopt -o default ;;
        replay:--backend=*) words='segments pages pytorch expandable whole cudamalloc' word=${word#*=} list=1 ;;
        replay:--reuse=*) words='barrier wait sync' word=${word#*=} list=1 ;;
        replay:--format=*) words='text json' word=${word#*=} ;;
        replay:--*=*) compopt -o default; return ;;
        replay:-*) words='--backend= --delay= --budget= --limit= --reuse= --decay= --memory= --periods= --device= --format= --each --help' ;;
        replay:*) compopt -o default; return ;;
        ctl:--*=*) compopt -o default; return ;;
        ctl:-*) words='--device= --timeout= --help' ;;
        ctl:*) words="$(gpucache top --once 2>/dev/null | awk 'NR > 1 && $2 + 0 == $2 { print $1 }') report empty-cache reset-peak limit" ;;
        metrics:--format=*) words='openmetrics prometheus' word=${word#*=} ;;
        metrics:--*=*) compopt -o default; return ;;
        metrics:-*) words='--format= --listen= --help' ;;
        timeline:--*=*) compopt -o default; return ;;
        timeline:-*) words='--last= --help' ;;
        timeline:*) words="$(gpucache top --once 2>/dev/null | awk 'NR > 1 && $2 + 0 == $2 { print $1 }')" && compopt -o default ;;
        snapshot:--*=*) compopt -o default; return ;;
        snapshot:-*) words='--json --last= --help' ;;
        snapshot:*) words="$(gpucache top --once 2>/dev/null | awk 'NR > 1 && $2 + 0 == $2 { print $1 }')" && compopt -o default ;;
        help:--*=*) compopt -o default; return ;;
        help:-*) words='--help' ;;
        help:*) words='run options top report replay ctl metrics timeline snapshot help' ;;
        esac
    fi
    [[ -n $list && $word == *,* ]] && front=${word%,*}, word=${word##*,}
    while read -r i; do
        [[ -n $i ]] && COMPREPLY+=("$front$i")
        [[ $i == *= ]] && compopt -o nospace 2>/dev/null
    done < <(compgen -W "$words" -- "$word")
    # bash has parted the word at its =, if that is one of the characters that part words
    if [[ $COMP_WORDBREAKS != *=* && $line == *=* && ${#COMPREPLY[@]} -gt 0 && $word != -* ]]; then
        i=${line##*[[:space:]]}
        [[ $i == *=* ]] && COMPREPLY=("${COMPREPLY[@]/#/${i%%=*}=}")
    fi
}

# Behind the options of run: a program and what that takes.
_gpucache_program() {
    local i
    for ((i = 2; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) ((i++)); break ;;
        -* | =) ;;
        *)
            case ${COMP_WORDS[i - 1]} in
            = | --max-peak | --max-peak-or-none | --memory-fraction | --memory-limit | --report | --report-format | --report-signal | --report-interval | --reuse | --backend | --budget | --decay-ms | --stacks | --trace | --trace-events | --oom-snapshot | --file-mode | --live | --pinned | --disable | --log) ;;
            *) break ;;
            esac
            ;;
        esac
    done
    [[ $i -lt $COMP_CWORD || -z $valued && ${COMP_WORDS[COMP_CWORD]} != -* && ${COMP_WORDS[COMP_CWORD]} != = &&
        ${COMP_WORDS[COMP_CWORD - 1]} != = ]] || return 1
    if declare -F _command_offset >/dev/null; then
        _command_offset "$i"
    else
        compopt -o default
        ((i == COMP_CWORD)) && mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    fi
    return 0
}
complete -F _gpucache gpucache
