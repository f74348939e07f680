# Completion for bash from the rows of `calla --help-table`; see table.awk. Where nothing is
# offered bash completes file names.
function words(c, what,    i, list) {
    list = ""
    for (i = 1; i <= options[c]; i++)
        if (what == "all" || (argument[c, i] != "" && !takes_file(argument[c, i])))
            list = list (list == "" ? "" : " ") "--" option[c, i]
    return list
}

END {
    print "# made by packaging/calla.bash.awk"
    print "_calla()\n{"
    print "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}"
    print "    local options= values= commands="
    for (c = 1; c <= n; c++)
        all = all name[c] " "
    print "    commands=\"" all words(0, "all") "\""
    print "    COMPREPLY=()"
    print "    if [ \"$COMP_CWORD\" -eq 1 ]; then"
    print "        COMPREPLY=($(compgen -W \"$commands\" -- \"$word\"))"
    print "        return"
    print "    fi"
    print "    case ${COMP_WORDS[1]} in"
    for (c = 1; c <= n; c++) {
        print "    " name[c] ")"
        print "        options=\"" words(c, "all") "\""
        print "        values=\"" words(c, "values") "\""
        print "        ;;"
    }
    print "    esac"
    print "    # --name=value comes in three words"
    print "    [ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD - 2]}"
    print "    [ \"$word\" != = ] || word="
    print "    case \" $values \" in"
    print "    *\" $before \"*)"
    print "        compopt +o default 2>/dev/null"
    print "        case \"${COMP_WORDS[1]} $before\" in"
    for (c = 1; c <= n; c++)
        for (i = 1; i <= options[c]; i++)
            if (values[c, i] != "")
                print "        \"" name[c] " --" option[c, i] "\") values=\"" values[c, i] "\" ;;"
    print "        *) return ;;"
    print "        esac"
    print "        COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))"
    print "        return"
    print "        ;;"
    print "    esac"
    print "    case $word in"
    print "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;"
    print "    esac\n}"
    print "complete -o default -F _calla calla"
}
