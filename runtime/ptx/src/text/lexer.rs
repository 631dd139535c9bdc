//! Splits a text into tokens.
//!
//! A token never fails: text that is no token becomes [`Token::Invalid`], which the parser accepts
//! nowhere.

/// A token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// An identifier, such as `softmax`, `%r1`, `$L__BB0_3` or `_`. The component of `%tid.x` is
    /// part of it.
    Name(&'a str),
    /// Words with dots between them: an opcode such as `add.rn.f32`, or `v.x`.
    Dotted(&'a str),
    /// A word behind a dot, without the dot: `reg` or `shared::cta`.
    Directive(&'a str),
    /// An integer. It is unsigned if it has the suffix `U` or exceeds 63 bits.
    Integer {
        /// The value.
        value: u64,
        /// True if its type is `.u64`, false for `.s64`.
        is_unsigned: bool,
    },
    /// `0f` and the bits of a float of 32 bits.
    F32(u32),
    /// A float of 64 bits.
    F64(f64),
    /// The contents of a string, with the escapes as the text has them.
    Text(&'a str),
    /// A punctuation character.
    Symbol(char),
    /// `<<`, `>>`, `==`, `&&` or `||`.
    Twice(char),
    /// `<=`, `>=` or `!=`, without its `=`.
    OrEqual(char),
    /// Text that is no token, and a description of the token that it started.
    Invalid(&'static str),
    /// The end of the text.
    End,
}

/// A position in a text, and the tokens that follow it.
///
/// A copy of it remembers the position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    /// The byte behind the latest token. It is the border of a character, except inside an invalid
    /// token.
    end: usize,
    /// The first byte of the latest token.
    start: usize,
    /// The line of the latest token, from 1.
    line: u32,
}

/// The characters that continue an identifier, by their byte.
static FOLLOWS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let it = byte as u8;
        table[byte] = it.is_ascii_alphanumeric() || it == b'_' || it == b'$';
        byte += 1;
    }
    table
};

impl<'a> Lexer<'a> {
    /// Returns the tokens of a text. A NUL ends the text, as it does for the driver.
    pub(super) fn new(text: &'a str) -> Self {
        let text = text.split('\0').next().unwrap_or_default();
        Self { text, end: 0, start: 0, line: 1 }
    }

    /// Returns the line of the latest token, from 1.
    pub(super) fn line(&self) -> u32 {
        self.line
    }

    /// Returns the column of the latest token in characters, from 1.
    pub(super) fn column(&self) -> u32 {
        let before = &self.text[..self.start];
        let line = before.rfind('\n').map_or(0, |newline| newline + 1);
        1 + before[line..].chars().count() as u32
    }

    /// Returns the text of the latest token.
    pub(super) fn slice(&self) -> &'a str {
        self.text.get(self.start..self.end).unwrap_or_default()
    }

    /// Goes back to right behind the first character of the latest token, which must be ASCII. The
    /// lexer for constant expressions uses this: in `5%3`, the text `%3` is not a register.
    pub(super) fn keep_one_byte(&mut self) {
        self.end = self.start + 1;
    }

    /// Returns the next token.
    pub(super) fn next(&mut self) -> Token<'a> {
        if !self.skip_blanks() {
            return Token::Invalid("\"*/\"");
        }
        self.start = self.end;
        let Some(first) = self.byte(self.start) else { return Token::End };
        let second = self.byte(self.start + 1);
        match first {
            b'%' if !second.is_some_and(follows) => self.symbol(1, Token::Symbol('%')),
            b'%' => self.register(),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' => self.word(),
            b'0'..=b'9' => self.number(),
            b'.' if second.is_some_and(|byte| byte.is_ascii_digit()) => self.number(),
            b'.' if second.is_some_and(follows) => {
                self.end = self.segment(self.start + 1);
                Token::Directive(&self.text[self.start + 1..self.end])
            }
            b'"' => self.string(),
            b'<' | b'>' | b'=' | b'&' | b'|' if second == Some(first) => {
                self.symbol(2, Token::Twice(first.into()))
            }
            b'<' | b'>' | b'!' if second == Some(b'=') => self.symbol(2, Token::OrEqual(first.into())),
            b';' | b',' | b':' | b'@' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'+' | b'-' | b'*'
            | b'/' | b'!' | b'~' | b'&' | b'^' | b'|' | b'?' | b'<' | b'>' | b'=' => {
                self.symbol(1, Token::Symbol(first.into()))
            }
            _ => {
                let character = self.text[self.start..].chars().next();
                self.symbol(character.map_or(1, char::len_utf8), Token::Invalid("a token of PTX"))
            }
        }
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    fn symbol(&mut self, len: usize, token: Token<'a>) -> Token<'a> {
        self.end = self.start + len;
        token
    }

    /// Skips white space and comments. Returns false in a comment without an end.
    fn skip_blanks(&mut self) -> bool {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.end) {
                Some(b'\n') => {
                    self.line += 1;
                    self.end += 1;
                }
                Some(b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c') => self.end += 1,
                Some(b'/') if bytes.get(self.end + 1) == Some(&b'/') => {
                    let rest = &bytes[self.end..];
                    self.end += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                }
                Some(b'/') if bytes.get(self.end + 1) == Some(&b'*') => {
                    let rest = &self.text[self.end + 2..];
                    let Some(len) = rest.find("*/") else {
                        self.start = self.end;
                        self.end += 2;
                        return false;
                    };
                    self.line += rest[..len].bytes().filter(|&byte| byte == b'\n').count() as u32;
                    self.end += len + 4;
                }
                _ => return true,
            }
        }
    }

    /// Returns the end of the characters from `at` that continue an identifier.
    fn follow(&self, at: usize) -> usize {
        let rest = &self.text.as_bytes()[at..];
        at + rest.iter().position(|&byte| !follows(byte)).unwrap_or(rest.len())
    }

    /// Returns the end of a word behind a dot, which can have more words behind `::`.
    fn segment(&self, at: usize) -> usize {
        let mut end = self.follow(at);
        while self.text.as_bytes()[end..].starts_with(b"::") && self.byte(end + 2).is_some_and(follows) {
            end = self.follow(end + 2);
        }
        end
    }

    fn word(&mut self) -> Token<'a> {
        self.end = self.follow(self.start);
        let name_end = self.end;
        while self.byte(self.end) == Some(b'.') && self.byte(self.end + 1).is_some_and(follows) {
            self.end = self.segment(self.end + 1);
        }
        match self.slice() {
            "$" => Token::Invalid("a name"),
            word if self.end == name_end => Token::Name(word),
            word => Token::Dotted(word),
        }
    }

    fn register(&mut self) -> Token<'a> {
        self.end = self.follow(self.start + 1);
        if self.byte(self.end) == Some(b'.') {
            let end = self.follow(self.end + 1);
            if is_component(&self.text[self.end + 1..end]) {
                self.end = end;
            }
        }
        Token::Name(self.slice())
    }

    fn string(&mut self) -> Token<'a> {
        let bytes = self.text.as_bytes();
        self.end += 1;
        loop {
            match bytes.get(self.end) {
                Some(b'"') => break,
                Some(b'\\') => self.end += 2,
                Some(b'\n') | None => {
                    self.end = self.start + 1;
                    return Token::Invalid("a string with an end on its line");
                }
                Some(_) => self.end += 1,
            }
        }
        self.end += 1;
        Token::Text(&self.text[self.start + 1..self.end - 1])
    }

    fn number(&mut self) -> Token<'a> {
        let digits = self.digits(self.start);
        let (end, token) = match self.byte(digits) {
            Some(b'.' | b'e' | b'E') => self.decimal_float(digits),
            Some(letter) if digits == self.start + 1 && self.byte(self.start) == Some(b'0') => {
                let end = self.follow(digits);
                let token = match letter {
                    b'x' | b'X' => integer(&self.text[digits + 1..end], 16),
                    b'b' | b'B' => integer(&self.text[digits + 1..end], 2),
                    b'f' | b'F' => match &self.text.as_bytes()[digits + 1..end] {
                        bits if bits.len() == 8 => hexadecimal(bits).map(|bits| Token::F32(bits as u32)),
                        _ => None,
                    }
                    .unwrap_or(Token::Invalid("a float of 8 hexadecimal digits")),
                    b'd' | b'D' => match &self.text.as_bytes()[digits + 1..end] {
                        bits if bits.len() == 16 => {
                            hexadecimal(bits).map(|bits| Token::F64(f64::from_bits(bits)))
                        }
                        _ => None,
                    }
                    .unwrap_or(Token::Invalid("a float of 16 hexadecimal digits")),
                    _ => integer(&self.text[self.start..end], 10),
                };
                (end, token)
            }
            _ => {
                let end = self.follow(digits);
                let radix = if self.byte(self.start) == Some(b'0') { 8 } else { 10 };
                (end, integer(&self.text[self.start..end], radix))
            }
        };
        self.end = end;
        token
    }

    /// Returns the end of the decimal digits from `at`.
    fn digits(&self, at: usize) -> usize {
        let rest = &self.text.as_bytes()[at..];
        at + rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
    }

    /// Reads a float whose digits end at `digits`, with its end.
    fn decimal_float(&self, digits: usize) -> (usize, Token<'a>) {
        let mut end = digits;
        if self.byte(end) == Some(b'.') {
            end = self.digits(end + 1);
        }
        if matches!(self.byte(end), Some(b'e' | b'E')) {
            end += 1;
            if matches!(self.byte(end), Some(b'+' | b'-')) {
                end += 1;
            }
            end = self.digits(end);
        }
        let end = self.follow(end);
        let value = self.text[self.start..end].parse();
        (end, value.map_or(Token::Invalid("a number"), Token::F64))
    }
}

fn follows(byte: u8) -> bool {
    FOLLOWS[usize::from(byte)]
}

/// Returns whether a word behind a dot selects a part of a register: an element of a vector, or a
/// byte or half word as in the video instructions.
pub(super) fn is_component(word: &str) -> bool {
    matches!(word, "x" | "y" | "z" | "w" | "r" | "g" | "b" | "a" | "b0" | "b1" | "b2" | "b3" | "h0" | "h1")
}

fn integer<'a>(digits: &str, radix: u32) -> Token<'a> {
    let number = digits.strip_suffix('U').unwrap_or(digits);
    match u64::from_str_radix(number, radix) {
        Ok(value) => {
            Token::Integer { value, is_unsigned: number.len() < digits.len() || value > i64::MAX as u64 }
        }
        Err(_) if !number.is_empty() && number.chars().all(|digit| digit.is_digit(radix)) => {
            Token::Invalid("an integer of at most 64 bits")
        }
        Err(_) => Token::Invalid("a number"),
    }
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |bits, &digit| Some(bits << 4 | u64::from(char::from(digit).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(text);
        std::iter::from_fn(|| Some(lexer.next()).filter(|token| *token != Token::End)).collect()
    }

    fn int(value: u64) -> Token<'static> {
        Token::Integer { value, is_unsigned: false }
    }

    fn unsigned(value: u64) -> Token<'static> {
        Token::Integer { value, is_unsigned: true }
    }

    #[test]
    fn an_identifier_starts_with_a_letter_or_has_a_second_character() {
        assert_eq!(
            tokens("a k_1$ _x $L__BB0_3 %r1 _"),
            ["a", "k_1$", "_x", "$L__BB0_3", "%r1", "_"].map(Token::Name)
        );
        assert_eq!(tokens("$"), [Token::Invalid("a name")]);
        assert_eq!(tokens("% %"), [Token::Symbol('%'), Token::Symbol('%')]);
    }

    #[test]
    fn a_component_belongs_to_its_register() {
        let names = ["%tid.x", "%v.w", "%c.r", "%c.a", "%r1.b3", "%r1.h0"];
        assert_eq!(tokens(&names.join(" ")), names.map(Token::Name));
        assert_eq!(tokens("%r1.xy"), [Token::Name("%r1"), Token::Directive("xy")]);
        assert_eq!(tokens("v.x"), [Token::Dotted("v.x")]);
    }

    #[test]
    fn an_opcode_with_its_dots_is_one_token() {
        for opcode in [
            "add.rn.f32",
            "ld.shared::cta.v4.f32",
            "tex.2d.v4.f32.s32",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
            "ld.global.L2::128B.b32",
        ] {
            assert_eq!(tokens(opcode), [Token::Dotted(opcode)]);
        }
        assert_eq!(tokens("ret;"), [Token::Name("ret"), Token::Symbol(';')]);
    }

    #[test]
    fn each_dot_without_a_word_before_it_starts_a_directive() {
        assert_eq!(
            tokens(".ptr.global .shared::cta"),
            [Token::Directive("ptr"), Token::Directive("global"), Token::Directive("shared::cta")]
        );
        assert_eq!(tokens(". x"), [Token::Invalid("a token of PTX"), Token::Name("x")]);
    }

    #[test]
    fn integers_have_four_bases_and_a_suffix() {
        assert_eq!(
            tokens("0 10 0x1F 0X1f 017 0b101 0B1"),
            [int(0), int(10), int(31), int(31), int(15), int(5), int(1)]
        );
        assert_eq!(tokens("0U 7U 0x1U 017U 0b1U"), [0, 7, 1, 15, 1].map(unsigned));
        assert_eq!(
            tokens("9223372036854775807 9223372036854775808"),
            [int((1 << 63) - 1), unsigned(1 << 63)]
        );
        assert_eq!(tokens("0xFFFFFFFFFFFFFFFF"), [unsigned(u64::MAX)]);
    }

    #[test]
    fn malformed_integers_are_invalid() {
        for text in ["08", "1x", "0x", "0b2", "12a", "0z", "U0x", "0U1", "1_0"] {
            let is_name = text.starts_with('U');
            assert_eq!(tokens(text) == [Token::Invalid("a number")], !is_name, "{text}");
        }
        for text in ["18446744073709551616", "0x1FFFFFFFFFFFFFFFF", "02000000000000000000000"] {
            assert_eq!(tokens(text), [Token::Invalid("an integer of at most 64 bits")], "{text}");
        }
    }

    #[test]
    fn floats_are_bits_or_decimal() {
        assert_eq!(tokens("0f3F800000 0Fbf800000"), [Token::F32(0x3F80_0000), Token::F32(0xBF80_0000)]);
        assert_eq!(tokens("0d3FF0000000000000 0D4000000000000000"), [1.0, 2.0].map(Token::F64));
        assert_eq!(
            tokens("1.5 0.5 2. .25 1e3 1.5e-3 2.E+2"),
            [1.5, 0.5, 2.0, 0.25, 1e3, 1.5e-3, 2e2].map(Token::F64)
        );
        for text in ["1.5x", "1e", "1e+", "1.5e-"] {
            assert_eq!(tokens(text), [Token::Invalid("a number")], "{text}");
        }
        assert_eq!(tokens("0f3F80000"), [Token::Invalid("a float of 8 hexadecimal digits")]);
        assert_eq!(tokens("0f3F80000g"), [Token::Invalid("a float of 8 hexadecimal digits")]);
        assert_eq!(tokens("0d3F800000"), [Token::Invalid("a float of 16 hexadecimal digits")]);
    }

    #[test]
    fn strings_end_on_their_line() {
        assert_eq!(
            tokens(r#""nounroll" "a\"b" "" "\é""#),
            ["nounroll", r#"a\"b"#, "", r"\é"].map(Token::Text)
        );
        for text in ["\"abc", "\"abc\n\"", "\"\\", "\"\\\""] {
            assert_eq!(tokens(text)[0], Token::Invalid("a string with an end on its line"), "{text}");
        }
    }

    #[test]
    fn operators_of_two_characters_are_one_token() {
        assert_eq!(tokens("<< >> == && ||"), ['<', '>', '=', '&', '|'].map(Token::Twice));
        assert_eq!(tokens("<= >= !="), ['<', '>', '!'].map(Token::OrEqual));
        assert_eq!(tokens("< > = & | !"), ['<', '>', '=', '&', '|', '!'].map(Token::Symbol));
    }

    #[test]
    fn comments_are_blank_and_count_their_lines() {
        let mut lexer = Lexer::new("// é .entry\na /* b\n\n*/ c /**/ é/* open");
        assert_eq!((lexer.next(), lexer.line(), lexer.column()), (Token::Name("a"), 2, 1));
        assert_eq!((lexer.next(), lexer.line(), lexer.column()), (Token::Name("c"), 4, 4));
        assert_eq!((lexer.next(), lexer.line(), lexer.column()), (Token::Invalid("a token of PTX"), 4, 11));
        assert_eq!(lexer.slice(), "é");
        assert_eq!((lexer.next(), lexer.line(), lexer.column()), (Token::Invalid("\"*/\""), 4, 12));
        assert_eq!(lexer.slice(), "/*");
    }

    #[test]
    fn a_nul_ends_the_text() {
        assert_eq!(tokens("a\0b"), [Token::Name("a")]);
        assert_eq!(tokens(""), []);
    }
}
