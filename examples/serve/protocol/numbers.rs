//! From the JSON of a tensor straight to f32, without a tree of values in between.
//!
//! A tree takes 32 bytes for each number, of which a body may have one in every two bytes.

use super::{INPUT, is_grey, not_grey, start_of};
use crate::network::PIXELS;
use crate::refused::Refused;
use serde::Deserializer;
use serde::de::{SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Returns the grey values of a JSON array, which is flat or has an array for each row.
///
/// # Errors
/// With status 400, and the numbers of rows or pixels, or the first value that is not a grey one.
pub(super) fn numbers(data: &RawValue, rows: usize) -> Result<Vec<f32>, Refused> {
    if !is_array(data) {
        return Err(Refused::bad(format!("data of input \"{INPUT}\" is not an array; expected an array")));
    }
    let is_nested = data.get()[1..].trim_start().starts_with('[');
    let (expected, unit) = if is_nested { (rows, "rows") } else { (rows * PIXELS, "numbers") };
    let mut values = Values { numbers: Vec::new(), expected: rows * PIXELS, refused: None };
    let found = each(data, |at, value| match is_nested {
        true if at < rows => values.push_row(at, value),
        true => {}
        false => values.push(at, value),
    })?;
    if found != expected {
        return Err(Refused::bad(format!(
            "data of input \"{INPUT}\" has {found} {unit}, and the shape [{rows}, {PIXELS}] has {expected}; \
             correct the data or the shape"
        )));
    }
    values.refused.map_or(Ok(values.numbers), Err)
}

/// The values so far, or the first mistake among them.
struct Values {
    numbers: Vec<f32>,
    /// The length of a tensor that is right. What exceeds it is not kept.
    expected: usize,
    refused: Option<Refused>,
}

impl Values {
    fn push_row(&mut self, at: usize, row: &RawValue) {
        if !is_array(row) {
            return self.refuse(format!("row {at} is not an array; expected {PIXELS} numbers"));
        }
        match each(row, |pixel, value| self.push(at * PIXELS + pixel, value)) {
            Ok(PIXELS) => {}
            Ok(found) => self
                .refuse(format!("row {at} has {found} numbers, and {PIXELS} are expected; correct the row")),
            Err(refused) => drop(self.refused.get_or_insert(refused)),
        }
    }

    fn push(&mut self, at: usize, value: &RawValue) {
        let text = value.get();
        // The grammar of numbers in Rust includes that of JSON, but also `inf` and `nan`.
        let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        match text.parse() {
            Ok(number) if is_number && is_grey(number) => {
                if self.refused.is_none() && self.numbers.len() < self.expected {
                    self.numbers.push(number);
                }
            }
            Ok(_) if is_number => {
                self.refused.get_or_insert_with(|| not_grey(at, start_of(text)));
            }
            _ => {
                let (pixel, row) = (at % PIXELS, at / PIXELS);
                self.refuse(format!("pixel {pixel} of row {row} is {}; expected a number", start_of(text)));
            }
        }
    }

    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert_with(|| Refused::bad(reason));
    }
}

fn is_array(value: &RawValue) -> bool {
    value.get().starts_with('[')
}

/// Calls `visit` for each element of an array. Returns their number.
fn each(array: &RawValue, visit: impl FnMut(usize, &RawValue)) -> Result<usize, Refused> {
    let mut json = serde_json::Deserializer::from_str(array.get());
    json.deserialize_seq(Elements(visit))
        .map_err(|error| Refused::bad(format!("data of input \"{INPUT}\": {error}")))
}

struct Elements<F>(F);

impl<'de, F: FnMut(usize, &RawValue)> Visitor<'de> for Elements<F> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<usize, A::Error> {
        let mut at = 0;
        while let Some(element) = elements.next_element::<&RawValue>()? {
            (self.0)(at, element);
            at += 1;
        }
        Ok(at)
    }
}
