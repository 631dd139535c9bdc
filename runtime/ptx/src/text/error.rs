//! The error of the parser.

use std::fmt;

/// A place of a text that is not PTX, or that the parser does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line of the text, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The text at this place: a token in quotes, or a description.
    pub found: String,
    /// A description of the text that was expected.
    pub expected: String,
    /// Advice, or an empty text.
    pub remedy: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, found, expected, remedy } = self;
        write!(f, "line {line}, column {column}: found {found} where {expected} was expected")?;
        if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
    }
}

impl std::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_place_both_texts_and_the_remedy() {
        let mut error = ParseError {
            line: 12,
            column: 5,
            found: "\";\"".into(),
            expected: "an operand".into(),
            remedy: "",
        };
        assert_eq!(error.to_string(), "line 12, column 5: found \";\" where an operand was expected");
        error.remedy = "write one";
        assert_eq!(
            error.to_string(),
            "line 12, column 5: found \";\" where an operand was expected; write one"
        );
    }
}
