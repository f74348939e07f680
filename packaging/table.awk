# Reads the rows of `calla --help-table` (src/cli/options.h) for the generators beside this file,
# each of which is an END rule: command c, 0 being the program itself, has name[c], arguments[c],
# summary[c], details 1..details[c] and options 1..options[c].
BEGIN { FS = "\t"; n = -1 }
$1 == "command" { name[++n] = $2; arguments[n] = $3; summary[n] = $4; details[n] = options[n] = 0 }
$1 == "detail" { detail[n, ++details[n]] = substr($0, length("detail\t") + 1) }
$1 == "option" {
    i = ++options[n]
    option[n, i] = $2
    argument[n, i] = $3
    values[n, i] = $5 # all that it takes, with spaces between; "": anything
    help[n, i] = $4 ($5 == "" ? "" : ": " listed($5))
}

# The words with commas between, as --help has them.
function listed(words,    parts, count, i, out) {
    count = split(words, parts, " ")
    for (i = 1; i <= count; i++)
        out = out (i > 1 ? ", " : "") parts[i]
    return out
}

function takes_file(word) {
    return word ~ /FILE|DIR|FOLDER/
}

# The line with `before` in front of each character out of `special`; by hand because what sub and
# gsub make of backslashes differs between awks.
function escaped(line, special, before,    out, i, c) {
    out = ""
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        out = out (index(special, c) ? before : "") c
    }
    return out
}
