# calla.1 from the rows of `calla --help-table`; see table.awk. The variable: version.

# A line of text: no character of it is markup.
function text(line,    i, c, out) {
    out = line ~ /^[.']/ ? "\\&" : ""
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        out = out (c == "\\" ? "\\e" : c == "-" ? "\\-" : c)
    }
    return out
}

# Lines like "--json: {…" begin an entry, which indented lines go on; other indented lines stay as
# they are, and the rest is filled.
function print_details(c,    i, line, tag, mode) {
    mode = ""
    for (i = 1; i <= details[c]; i++) {
        line = detail[c, i]
        if (match(line, /^(in|out|--[a-z-]+): +/)) {
            tag = line
            sub(/: .*/, ":", tag)
            print (mode == "kept" ? ".fi\n" : "") ".TP\n" text(tag)
            line = substr(line, RLENGTH + 1)
            mode = "entry"
        } else if (line ~ /^ / && mode != "entry") {
            if (mode != "kept")
                print ".PP\n.nf"
            mode = "kept"
        } else if (line !~ /^ / && mode != "filled") {
            if (i > 1 || c > 0) # a heading begins a paragraph by itself
                print (mode == "kept" ? ".fi\n" : "") ".PP"
            mode = "filled"
        }
        if (mode != "kept")
            sub(/^ +/, "", line)
        print text(line)
    }
    if (mode == "kept")
        print ".fi"
}

function print_options(c,    i) {
    for (i = 1; i <= options[c]; i++) {
        print ".TP\n\\fB\\-\\-" text(option[c, i]) "\\fR" \
            (argument[c, i] == "" ? "" : " \\fI" text(argument[c, i]) "\\fR")
        print text(help[c, i])
    }
}

END {
    print ".\\\" Made by packaging/calla.1.awk from `calla --help-table`."
    print ".TH CALLA 1 \"\" \"calla " version "\" \"User Commands\""
    print ".SH NAME\ncalla \\- " text(tolower(substr(summary[0], 1, 1)) substr(summary[0], 2, length(summary[0]) - 2))
    print ".SH SYNOPSIS"
    for (c = 1; c <= n; c++)
        print (c > 1 ? ".br\n" : "") "\\fBcalla " text(name[c]) "\\fR \\fI" text(arguments[c]) "\\fR [options]"
    print ".br\n\\fBcalla \\-\\-help\\fR | \\fBcalla\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR | \\fBcalla \\-\\-version\\fR"
    print ".SH DESCRIPTION"
    print_details(0)
    print ".SH OPTIONS"
    print_options(0)
    print ".SH COMMANDS"
    for (c = 1; c <= n; c++) {
        print ".SS calla " text(name[c]) " " text(arguments[c])
        print text(summary[c])
        print_details(c)
        print_options(c)
    }
}
