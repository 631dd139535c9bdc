//! Text as JSON, the little that two writers need.

use std::fmt::Write as _;

/// A JSON string. Also without the characters that mean something in HTML and XML, so that it can stand there as it is.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '<' | '>' | '&' | '\u{fffe}' | '\u{ffff}' | '\0'..' ' => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
