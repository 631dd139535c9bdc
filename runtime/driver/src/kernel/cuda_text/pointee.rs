//! The numbers to which the pointers of a kernel point.

use super::{Kind, Token};

/// The type of a number, without its sign: a text may read unsigned numbers as signed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// Of this many bytes.
    Integer(usize),
    /// Of this many bytes.
    Float(usize),
    /// `bf16`
    Brain,
}

impl Number {
    /// Returns the type of the numbers behind a pointer, or `None` if it is not one of a few known
    /// types. `is_declared` tells whether the text itself gives a name a meaning.
    pub(super) fn behind(parameter: &[Token<'_>], is_declared: impl Fn(&str) -> bool) -> Option<Self> {
        let is_end = |token: &Token<'_>| token.is_sign("*") || token.is_sign("[");
        let end = parameter.iter().position(is_end)?;
        if parameter[end + 1..].iter().any(is_end) {
            return None;
        }
        let mut words = Vec::new();
        for token in &parameter[..end] {
            match token.kind {
                Kind::Word if CV.contains(&token.text) => {}
                Kind::Word => words.push(token.text),
                _ => return None,
            }
        }
        // Of `float x[]`, the last word is the parameter's name.
        if parameter[end].is_sign("[") && words.len() > 1 && !BUILTIN.contains(words.last()?) {
            words.pop();
        }
        match words[..] {
            [name] if !BUILTIN.contains(&name) => Self::named(name).filter(|_| !is_declared(name)),
            _ => Self::builtin(&words),
        }
    }

    fn builtin(words: &[&str]) -> Option<Self> {
        let count = |word: &str| words.iter().filter(|other| **other == word).count();
        if words.is_empty() || !words.iter().all(|word| BUILTIN.contains(word)) {
            return None;
        }
        match count("long") {
            0 if count("double") > 0 => Some(Number::Float(8)),
            0 if count("float") > 0 => Some(Number::Float(4)),
            0 if count("short") > 0 => Some(Number::Integer(2)),
            0 if count("char") > 0 => Some(Number::Integer(1)),
            0 => Some(Number::Integer(4)),
            2 => Some(Number::Integer(8)),
            // Either 4 or 8 bytes, as on the host.
            _ => None,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "half" | "__half" => Number::Float(2),
            "nv_bfloat16" | "__nv_bfloat16" => Number::Brain,
            "int8_t" | "uint8_t" => Number::Integer(1),
            "int16_t" | "uint16_t" => Number::Integer(2),
            "int32_t" | "uint32_t" => Number::Integer(4),
            "int64_t" | "uint64_t" | "size_t" => Number::Integer(8),
            _ => return None,
        })
    }

    /// Returns whether a kernel may read an array of elements of a declared type as these numbers:
    /// anything as bytes, and floats as integers of their size.
    pub(super) fn fits(self, element: &str, bytes: usize) -> bool {
        let declared = match element {
            "bf16" => Number::Brain,
            _ if element.starts_with('f') => Number::Float(bytes),
            _ => Number::Integer(bytes),
        };
        match (self, declared) {
            (Number::Integer(1), _) | (_, Number::Integer(1)) => true,
            (Number::Integer(size), _) => size == bytes,
            (Number::Float(size), Number::Integer(_)) => size == bytes,
            (Number::Brain, Number::Integer(_)) => bytes == 2,
            _ => self == declared,
        }
    }
}

const CV: [&str; 5] = ["const", "volatile", "__restrict__", "__restrict", "restrict"];
const BUILTIN: [&str; 8] = ["char", "signed", "unsigned", "short", "int", "long", "float", "double"];

#[cfg(test)]
mod tests {
    use super::super::tokens;
    use super::*;

    #[test]
    fn numbers_behind_pointers_are_those_of_the_text() {
        for (parameter, expected) in [
            ("const float* x", Some(Number::Float(4))),
            ("float const * __restrict__ x", Some(Number::Float(4))),
            ("double x[]", Some(Number::Float(8))),
            ("double[4]", Some(Number::Float(8))),
            ("unsigned* x", Some(Number::Integer(4))),
            ("unsigned x[4]", Some(Number::Integer(4))),
            ("long long unsigned int* x", Some(Number::Integer(8))),
            ("signed char* x", Some(Number::Integer(1))),
            ("short* x", Some(Number::Integer(2))),
            ("const __half* x", Some(Number::Float(2))),
            ("__nv_bfloat16* x", Some(Number::Brain)),
            ("uint64_t x[]", Some(Number::Integer(8))),
            // Types that are not known.
            ("uint8_t* x", None),
            ("long* x", None),
            ("long double* x", None),
            ("void* x", None),
            ("bool* x", None),
            ("float** x", None),
            ("float x[][4]", None),
            ("float4* x", None),
            ("struct point* x", None),
            ("cuda::std::uint32_t* x", None),
            ("unsigned index* x", None),
        ] {
            let tokens = tokens(parameter).unwrap();
            assert_eq!(Number::behind(&tokens, |name| name == "uint8_t"), expected, "{parameter}");
        }
    }

    #[test]
    fn elements_are_read_as_bytes_or_as_numbers_of_their_size() {
        for (number, element, bytes, fits) in [
            (Number::Float(4), "f32", 4, true),
            (Number::Float(8), "f32", 4, false),
            (Number::Integer(4), "f32", 4, true),
            (Number::Integer(8), "f32", 4, false),
            (Number::Integer(1), "f32", 4, true),
            (Number::Float(4), "u8", 1, true),
            (Number::Integer(4), "i32", 4, true),
            (Number::Integer(4), "u32", 4, true),
            (Number::Float(4), "u32", 4, true),
            (Number::Float(8), "u32", 4, false),
            (Number::Float(2), "f16", 2, true),
            (Number::Float(2), "bf16", 2, false),
            (Number::Brain, "bf16", 2, true),
            (Number::Integer(2), "bf16", 2, true),
            (Number::Integer(2), "i16", 2, true),
            (Number::Brain, "f16", 2, false),
            (Number::Brain, "u16", 2, true),
            (Number::Integer(4), "u16", 2, false),
        ] {
            assert_eq!(number.fits(element, bytes), fits, "{number:?} for {element}");
        }
    }
}
