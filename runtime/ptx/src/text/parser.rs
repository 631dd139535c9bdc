//! The core of the parser: its position, what it expects there, and its errors.
//!
//! The parser looks at one token at a time, and descends into a nested construct by recursion, at
//! most [`NESTING`] deep. The other files of the folder extend [`Parser`] by one construct each.

use super::error::ParseError;
use super::lexer::{Lexer, Token};
use super::module::Module;

/// A result of the parser.
pub(super) type Parsed<T> = Result<T, ParseError>;

/// The largest depth of nested scopes, expressions, vectors and initial values.
const NESTING: u32 = 64;

/// The longest token in an error, in characters.
const FOUND: usize = 40;

/// Reads a PTX text.
///
/// The parser knows the statements that NVRTC and NVCC emit. It does not check names, opcodes or
/// the types of operands. It skips the contents of `.section`, attributes, pragmas, the options of
/// `.target`, and the place of inlining in `.loc`. A NUL ends the text.
///
/// The body of a function does not contain its own braces. The braces of the scopes in it are in
/// pairs. `WARP_SZ` is the number 32.
///
/// # Errors
/// The text is not PTX, or constructs are nested more than 64 deep, or the text uses syntax that is
/// not supported: `.alias`, masks of addresses (`0xFF(name)`), `.tex` variables, `.reg` outside of
/// functions, and elements of arrays as operands (`name[1]`). The error names the first such place.
///
/// # Examples
/// ```
/// let text = ".version 8.0 .target sm_70 .address_size 64 .visible .entry nothing() { ret; }";
/// let module = warpline_ptx::text::parse(text)?;
/// assert_eq!(module.functions[0].name, "nothing");
///
/// let error = warpline_ptx::text::parse(".version 8.0 .target ;").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "line 1, column 22: found \";\" where a target such as sm_70 was expected"
/// );
/// # Ok::<(), warpline_ptx::text::ParseError>(())
/// ```
pub fn parse(text: &str) -> Result<Module<'_>, ParseError> {
    Parser::new(text).module()
}

/// A position in a text that the parser can go back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
}

/// The parser at a position in a text.
pub(super) struct Parser<'a> {
    pub(super) lexer: Lexer<'a>,
    /// The current token, the latest of the lexer.
    pub(super) token: Token<'a>,
    /// The number of constructs around this position that [`enter`](Self::enter) counted.
    depth: u32,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut lexer = Lexer::new(text);
        let token = lexer.next();
        Self { lexer, token, depth: 0 }
    }

    pub(super) fn advance(&mut self) {
        self.token = self.lexer.next();
    }

    /// Reads this symbol if it is the current token, and returns whether it was.
    pub(super) fn take(&mut self, symbol: char) -> bool {
        let is_next = matches!(self.token, Token::Symbol(it) if it == symbol);
        if is_next {
            self.advance();
        }
        is_next
    }

    pub(super) fn expect(&mut self, symbol: char) -> Parsed<()> {
        if self.take(symbol) { Ok(()) } else { self.error(&format!("\"{symbol}\"")) }
    }

    pub(super) fn name(&mut self, expected: &str) -> Parsed<&'a str> {
        let Token::Name(name) = self.token else {
            return self.error(expected);
        };
        self.advance();
        Ok(name)
    }

    /// Reads a literal of 32 bits.
    pub(super) fn u32(&mut self, expected: &str) -> Parsed<u32> {
        match self.token {
            Token::Integer { value, .. } if value <= u32::MAX.into() => {
                self.advance();
                Ok(value as u32)
            }
            Token::Integer { .. } => self.error("an integer of at most 32 bits"),
            _ => self.error(expected),
        }
    }

    /// Reads a construct inside another one. Fails if [`NESTING`] constructs are around it.
    pub(super) fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.enter()?;
        let result = read(self);
        self.leave();
        result
    }

    /// Enters a construct inside another one. Fails if [`NESTING`] constructs are around it.
    pub(super) fn enter(&mut self) -> Parsed<()> {
        if self.depth == NESTING {
            let mut error = self.error_of("nesting of at most 64 levels", "");
            error.found = "a 65th level".into();
            return Err(error);
        }
        self.depth += 1;
        Ok(())
    }

    /// Leaves the construct that the latest [`enter`](Self::enter) entered.
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Returns the current position.
    pub(super) fn mark(&self) -> Mark<'a> {
        Mark { lexer: self.lexer, token: self.token }
    }

    /// Goes back to a position.
    pub(super) fn reset(&mut self, mark: Mark<'a>) {
        (self.lexer, self.token) = (mark.lexer, mark.token);
    }

    /// Fails at the current token.
    pub(super) fn error<T>(&self, expected: &str) -> Parsed<T> {
        Err(self.error_of(expected, ""))
    }

    /// Fails at the current token, with advice.
    pub(super) fn error_with<T>(&self, expected: &str, remedy: &'static str) -> Parsed<T> {
        Err(self.error_of(expected, remedy))
    }

    /// Fails at another position.
    pub(super) fn error_at<T>(&mut self, mark: Mark<'a>, expected: &str) -> Parsed<T> {
        self.reset(mark);
        self.error(expected)
    }

    #[cold]
    fn error_of(&self, expected: &str, remedy: &'static str) -> ParseError {
        let slice = self.lexer.slice();
        let mut shown: String = slice.chars().take(FOUND).collect();
        if shown.len() < slice.len() {
            shown.push('…');
        }
        let (found, expected, remedy) = match self.token {
            Token::End => ("the end of the text".into(), expected, remedy),
            Token::Text(_) => (format!("the string {shown}"), expected, remedy),
            // A malformed token is an error at every place, so the place does not matter.
            Token::Invalid(expected) => (format!("\"{}\"", shown.escape_debug()), expected, ""),
            _ => (format!("\"{shown}\""), expected, remedy),
        };
        let (line, column) = (self.lexer.line(), self.lexer.column());
        ParseError { line, column, found, expected: expected.into(), remedy }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::text::{Operand, Statement};

    const HEAD: &str = ".version 8.0 .target sm_70 .address_size 64 ";

    /// The PTX of the repository's kernels, as (name, text).
    static COMMITTED: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/ptx");
        let mut texts = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            texts.push((path.display().to_string(), fs::read_to_string(path).unwrap()));
        }
        texts.sort();
        texts
    });

    #[test]
    fn the_committed_kernels_parse() {
        assert_eq!(COMMITTED.len(), 30);
        for (path, text) in COMMITTED.iter() {
            let module = parse(text).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(module.version, (8, 0), "{path}");
            assert_eq!(module.target, "sm_70", "{path}");
            assert_eq!(module.address_size, 64, "{path}");
            assert_eq!(module.functions.len(), text.matches(".entry").count(), "{path}");
            for function in &module.functions {
                assert!(function.is_kernel, "{path}: {}", function.name);
                let body = function.body.as_ref().unwrap();
                assert!(matches!(body.last(), Some(Statement::Instruction(it)) if it.opcode == "ret"));
            }
            let bodies = module.functions.iter().flat_map(|function| function.body.iter().flatten());
            let instructions =
                bodies.filter(|statement| matches!(statement, Statement::Instruction(_))).count();
            // Each instruction stands on a line of its own.
            let lines = text.lines().filter(|line| {
                let words = line.trim_start();
                words.ends_with(';') && !words.starts_with('.') && !words.starts_with("//")
            });
            assert_eq!(instructions, lines.count(), "{path}");
        }
    }

    #[test]
    fn lines_count_from_the_start_of_the_text() {
        for (path, text) in COMMITTED.iter() {
            let lines: Vec<&str> = text.lines().collect();
            for function in &parse(text).unwrap().functions {
                let line = lines[function.line as usize - 1];
                assert!(line.contains(&format!(" {}(", function.name)), "{path}: {line}");
                for statement in function.body.iter().flatten() {
                    let Statement::Instruction(instruction) = statement else { continue };
                    let line = lines[instruction.line as usize - 1];
                    assert!(line.contains(instruction.opcode), "{path}: {line}");
                    if let Some(Operand::Name(name)) = instruction.operands.first() {
                        assert!(line.contains(name), "{path}: {line}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_error_shows_the_start_of_a_long_token() {
        let error = parse(&format!("{HEAD}\n  éa")).unwrap_err();
        assert_eq!((error.line, error.column, error.found.as_str()), (2, 3, "\"é\""));
        let error = parse(&format!("{HEAD}{}", "a".repeat(100_000))).unwrap_err();
        assert_eq!(error.found, format!("\"{}…\"", "a".repeat(40)));
    }

    /// A change of a text.
    #[derive(Clone, Debug)]
    enum Change {
        Delete(Index),
        Double(Index),
        Replace(Index, Index),
        Insert(Index, &'static str),
        Cut(Index),
    }

    fn change() -> impl Strategy<Value = Change> {
        let pieces = [
            "{",
            "}",
            "(",
            ")",
            "[",
            "]",
            "<",
            ">",
            "\"",
            "/*",
            "//",
            ".",
            ",",
            ";",
            "|",
            "!",
            "@",
            "-",
            "?",
            ":",
            "%",
            "é",
            "\0",
            "0x",
            "1e",
            "0f",
            "99999999999999999999",
            ".align",
            ".reg",
            "=",
            "/0",
            ".section",
            ".loc",
        ];
        let at = any::<Index>;
        prop_oneof![
            at().prop_map(Change::Delete),
            at().prop_map(Change::Double),
            (at(), at()).prop_map(|(place, source)| Change::Replace(place, source)),
            (at(), prop::sample::select(pieces.to_vec()))
                .prop_map(|(place, piece)| Change::Insert(place, piece)),
            at().prop_map(Change::Cut),
        ]
    }

    /// Applies a change to the pieces of a text.
    fn apply<T: Clone>(change: &Change, pieces: &mut Vec<T>, piece: impl Fn(&'static str) -> T) {
        if pieces.is_empty() {
            return;
        }
        let len = pieces.len();
        match change {
            Change::Delete(at) => drop(pieces.remove(at.index(len))),
            Change::Double(at) => pieces.insert(at.index(len), pieces[at.index(len)].clone()),
            Change::Replace(at, source) => pieces[at.index(len)] = pieces[source.index(len)].clone(),
            Change::Insert(at, text) => pieces.insert(at.index(len), piece(text)),
            Change::Cut(at) => pieces.truncate(at.index(len)),
        }
    }

    proptest! {
        #[test]
        fn a_changed_text_does_not_panic(
            text in any::<Index>(),
            of_tokens in prop::collection::vec(change(), 0..8),
            of_characters in prop::collection::vec(change(), 0..4),
        ) {
            let (_, text) = &COMMITTED[text.index(COMMITTED.len())];
            let mut lexer = Lexer::new(text);
            let mut tokens = Vec::new();
            while lexer.next() != Token::End {
                tokens.push(lexer.slice());
            }
            for change in &of_tokens {
                apply(change, &mut tokens, |text| text);
            }
            let mut characters: Vec<char> = tokens.join(" ").chars().collect();
            for change in &of_characters {
                apply(change, &mut characters, |text| text.chars().next().unwrap_or(' '));
            }
            let text: String = characters.into_iter().collect();
            match parse(&text) {
                Ok(_) => prop_assert!(text.contains(".version")),
                Err(error) => {
                    prop_assert_eq!(error.line, 1);
                    prop_assert!(error.column as usize <= text.chars().count() + 1);
                }
            }
        }

        #[test]
        fn any_text_does_not_panic(text in "\\PC*", statement in "[a-z%.{}()\\[\\]|!@,;:<>=+*/0-9 \"-]*") {
            let _ = parse(&text);
            let _ = parse(&format!("{HEAD}{text}"));
            let _ = parse(&format!("{HEAD}.entry k() {{ {statement} }}"));
            let _ = parse(&format!("{HEAD}.global .u32 a = {statement};"));
        }
    }
}
