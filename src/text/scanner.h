/* The pre-tokeniser: the rules R1-R7 of spec 7.3, which stand for the regex of tokenizer.json.
 * BPE never joins anything over the borders that it draws. */
#pragma once

/* The end of the pre-token that begins at `at`; at < end, and the text between is valid UTF-8. */
const unsigned char *scanner_next(const unsigned char *at, const unsigned char *end);

/* The regex that these rules implement, as tokenizer.json spells it. */
extern const char scanner_regex[];
