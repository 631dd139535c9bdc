//! Headers of which a request may have one.

use crate::refused::Refused;
use axum::http::{HeaderMap, HeaderValue};

/// Returns the header of this name.
///
/// # Errors
/// With status 400 if there are several: which of them counts would be a guess.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, Refused> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.count()) {
        (first, 0) => Ok(first),
        (_, more) => Err(Refused::bad(format!("{name} is sent {} times; send it once", more + 1))),
    }
}

/// Returns the number in the header of this name.
///
/// # Errors
/// With status 400 if it has anything but digits, or if there are several.
pub(crate) fn number(headers: &HeaderMap, name: &str, expected: &str) -> Result<Option<u64>, Refused> {
    let Some(value) = header(headers, name)? else { return Ok(None) };
    // A sign would be accepted by `parse`.
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(Refused::bad(format!("{name} is {value:?}; expected {expected}"))),
    }
}
