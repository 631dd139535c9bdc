//! The parameters of a request, an input or an output.
//!
//! Values stay text until they are asked for, so a client that sends large ones costs no memory
//! beyond its body.

use crate::refused::Refused;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;

/// The most parameters in one place. The protocol has fewer.
const MOST: usize = 16;

/// Names and values, each name once.
#[derive(Debug, Default)]
pub(super) struct Parameters<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Parameters<'a> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Parameters<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Parameters<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Vec<(String, _)> = Vec::new();
        while let Some((name, value)) = map.next_entry()? {
            if entries.len() == MOST {
                return Err(A::Error::custom(format!("more than {MOST} parameters in one place")));
            }
            if entries.iter().any(|(other, _)| *other == name) {
                return Err(A::Error::custom(format!("parameter \"{name}\" is sent twice; send it once")));
            }
            entries.push((name, value));
        }
        Ok(Parameters(entries))
    }
}

/// Returns whether a value is the number 0.
pub(super) fn is_zero(value: &RawValue) -> bool {
    value.get() == "0"
}

pub(super) fn boolean(name: &str, value: &RawValue) -> Result<bool, Refused> {
    serde_json::from_str(value.get()).map_err(|_| wrong_value(name, value, "true or false"))
}

pub(super) fn whole_number(name: &str, value: &RawValue, expected: &str) -> Result<u64, Refused> {
    serde_json::from_str(value.get()).map_err(|_| wrong_value(name, value, expected))
}

pub(super) fn is_shared_memory(name: &str) -> bool {
    name.starts_with("shared_memory_")
}

pub(super) fn no_shared_memory(name: &str) -> Refused {
    unsupported(name, "shared memory is not supported; send the tensor in the body")
}

pub(super) fn unsupported(name: &str, why: &str) -> Refused {
    Refused::bad(format!("parameter \"{name}\" is not supported: {why}"))
}

fn wrong_value(name: &str, value: &RawValue, expected: &str) -> Refused {
    Refused::bad(format!("parameter \"{name}\" is {}; expected {expected}", super::start_of(value.get())))
}

pub(super) fn unknown(name: &str, place: &str, known: &str) -> Refused {
    Refused::bad(format!("parameter \"{name}\" of {place} is unknown; known are {known}"))
}
