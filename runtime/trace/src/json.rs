//! JSON strings, for the two writers of this crate.

use std::fmt::Write as _;

/// Returns `text` as a JSON string. Characters with a meaning in HTML and XML are escaped, so the
/// string can be embedded there unchanged.
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
