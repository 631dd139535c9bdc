//! Computes constant expressions, by section 4.5 of the PTX ISA.
//!
//! An integer is `.s64` or `.u64`, and operations wrap around. If one operand is `.u64`, so is the
//! other; if one is a float, both are.

use super::lexer::Token;
use super::module::Number;
use super::parser::{Parsed, Parser};

/// The value of a constant expression.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Signed(i64),
    Unsigned(u64),
    /// `0f…`, which takes part in no operation but a change of its sign.
    Single(u32),
    Double(f64),
}
use Value::{Double, Signed, Single, Unsigned};

impl Value {
    /// Returns the bits of an integer.
    fn integer(self) -> Option<u64> {
        match self {
            Signed(value) => Some(value as u64),
            Unsigned(value) => Some(value),
            Single(_) | Double(_) => None,
        }
    }

    fn double(self) -> Option<f64> {
        match self {
            Signed(value) => Some(value as f64),
            Unsigned(value) => Some(value as f64),
            Double(value) => Some(value),
            Single(_) => None,
        }
    }

    fn number(self) -> Number {
        match self {
            Signed(value) => Number::Integer(value.into()),
            Unsigned(value) => Number::Integer(value.into()),
            Single(bits) => Number::F32(bits),
            Double(value) => Number::F64(value.to_bits()),
        }
    }
}

/// A binary operator.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Binary {
    Multiply,
    Divide,
    Remainder,
    Add,
    Subtract,
    ShiftLeft,
    ShiftRight,
    Less,
    Greater,
    LessOrEqual,
    GreaterOrEqual,
    Equal,
    NotEqual,
    And,
    Xor,
    Or,
    BothTrue,
    EitherTrue,
}
use Binary::*;

impl Binary {
    fn new(token: Token<'_>) -> Option<Self> {
        Some(match token {
            Token::Symbol('*') => Multiply,
            Token::Symbol('/') => Divide,
            Token::Symbol('%') => Remainder,
            Token::Symbol('+') => Add,
            Token::Symbol('-') => Subtract,
            Token::Twice('<') => ShiftLeft,
            Token::Twice('>') => ShiftRight,
            Token::Symbol('<') => Less,
            Token::Symbol('>') => Greater,
            Token::OrEqual('<') => LessOrEqual,
            Token::OrEqual('>') => GreaterOrEqual,
            Token::Twice('=') => Equal,
            Token::OrEqual('!') => NotEqual,
            Token::Symbol('&') => And,
            Token::Symbol('^') => Xor,
            Token::Symbol('|') => Or,
            Token::Twice('&') => BothTrue,
            Token::Twice('|') => EitherTrue,
            _ => return None,
        })
    }

    /// Returns the precedence; operators with a larger one bind tighter.
    fn precedence(self) -> u32 {
        match self {
            EitherTrue => 1,
            BothTrue => 2,
            Or => 3,
            Xor => 4,
            And => 5,
            Equal | NotEqual => 6,
            Less | Greater | LessOrEqual | GreaterOrEqual => 7,
            ShiftLeft | ShiftRight => 8,
            Add | Subtract => 9,
            Multiply | Divide | Remainder => PRODUCT,
        }
    }

    /// Computes the operation, or returns a description of the operand that it needs.
    fn apply(self, left: Value, right: Value) -> Result<Value, &'static str> {
        let (Some(x), Some(y)) = (left.integer(), right.integer()) else {
            return self.apply_floats(left, right);
        };
        let signed = match (left, right) {
            (Signed(x), Signed(y)) => Some((x, y)),
            _ => None,
        };
        let truth = |value| Ok(Signed(i64::from(value)));
        let order = signed.map_or(x.cmp(&y), |(x, y)| x.cmp(&y));
        let arithmetic = |on_unsigned: fn(u64, u64) -> u64, on_signed: fn(i64, i64) -> i64| {
            Ok(match signed {
                Some((x, y)) => Signed(on_signed(x, y)),
                None => Unsigned(on_unsigned(x, y)),
            })
        };
        match self {
            Divide | Remainder if y == 0 => Err("a divisor other than 0"),
            Multiply => arithmetic(u64::wrapping_mul, i64::wrapping_mul),
            Divide => arithmetic(u64::wrapping_div, i64::wrapping_div),
            // The operands are unsigned, and the result is signed.
            Remainder => Ok(Signed((x % y) as i64)),
            Add => arithmetic(u64::wrapping_add, i64::wrapping_add),
            Subtract => arithmetic(u64::wrapping_sub, i64::wrapping_sub),
            ShiftLeft | ShiftRight => {
                let count = u32::try_from(y).unwrap_or(u32::MAX);
                Ok(match (self, left) {
                    (ShiftLeft, Signed(x)) => Signed(x.checked_shl(count).unwrap_or(0)),
                    (ShiftLeft, _) => Unsigned(x.checked_shl(count).unwrap_or(0)),
                    (_, Signed(x)) => Signed(x >> count.min(63)),
                    (..) => Unsigned(x.checked_shr(count).unwrap_or(0)),
                })
            }
            Less => truth(order.is_lt()),
            Greater => truth(order.is_gt()),
            LessOrEqual => truth(order.is_le()),
            GreaterOrEqual => truth(order.is_ge()),
            Equal => truth(order.is_eq()),
            NotEqual => truth(order.is_ne()),
            And => Ok(Unsigned(x & y)),
            Xor => Ok(Unsigned(x ^ y)),
            Or => Ok(Unsigned(x | y)),
            BothTrue => truth(x != 0 && y != 0),
            EitherTrue => truth(x != 0 || y != 0),
        }
    }

    fn apply_floats(self, left: Value, right: Value) -> Result<Value, &'static str> {
        let (Some(x), Some(y)) = (left.double(), right.double()) else {
            return Err("an operand other than a float of 32 bits");
        };
        let truth = |value| Ok(Signed(i64::from(value)));
        match self {
            Multiply => Ok(Double(x * y)),
            Divide => Ok(Double(x / y)),
            Add => Ok(Double(x + y)),
            Subtract => Ok(Double(x - y)),
            Less => truth(x < y),
            Greater => truth(x > y),
            LessOrEqual => truth(x <= y),
            GreaterOrEqual => truth(x >= y),
            Equal => truth(x == y),
            NotEqual => truth(x != y),
            Remainder | ShiftLeft | ShiftRight | And | Xor | Or | BothTrue | EitherTrue => {
                Err("an integer operand")
            }
        }
    }
}

/// The precedence of `*`, the highest of a binary operator.
const PRODUCT: u32 = 10;

impl Parser<'_> {
    /// Returns whether the current token can start a constant expression.
    pub(super) fn is_at_constant(&self) -> bool {
        matches!(
            self.token,
            Token::Integer { .. }
                | Token::F32(_)
                | Token::F64(_)
                | Token::Name("WARP_SZ")
                | Token::Symbol('-' | '+' | '~' | '!' | '(')
        )
    }

    /// Reads a constant expression.
    pub(super) fn constant(&mut self) -> Parsed<Number> {
        Ok(self.expression()?.number())
    }

    /// Reads a constant expression whose value is an integer that is not negative.
    pub(super) fn constant_size(&mut self, expected: &'static str) -> Parsed<u64> {
        let start = self.mark();
        match self.expression()? {
            Unsigned(value) => Ok(value),
            Signed(value) if value >= 0 => Ok(value as u64),
            _ => self.error_at(start, expected),
        }
    }

    /// Reads a constant expression, and returns an integer in two's complement, or `None` for a
    /// float.
    pub(super) fn constant_integer(&mut self) -> Parsed<Option<i64>> {
        Ok(self.expression()?.integer().map(|bits| bits as i64))
    }

    /// Reads an integer in two's complement: a product, in front of which a sum may stand.
    pub(super) fn constant_factor(&mut self) -> Parsed<i64> {
        let start = self.mark();
        match self.binary(PRODUCT)?.integer() {
            Some(bits) => Ok(bits as i64),
            None => self.error_at(start, "an integer"),
        }
    }

    fn expression(&mut self) -> Parsed<Value> {
        let start = self.mark();
        let condition = self.binary(1)?;
        if !matches!(self.token, Token::Symbol('?')) {
            return Ok(condition);
        }
        let Some(condition) = condition.integer() else {
            return self.error_at(start, "an integer");
        };
        self.advance();
        let (if_true, if_false) = self.nested(|parser| {
            let if_true = parser.expression()?;
            parser.expect(':')?;
            Ok((if_true, parser.expression()?))
        })?;
        let chosen = if condition != 0 { if_true } else { if_false };
        Ok(match (if_true, if_false) {
            (Unsigned(_), Signed(_)) | (Signed(_), Unsigned(_)) => chosen.integer().map_or(chosen, Unsigned),
            (Double(_), _) | (_, Double(_)) => chosen.double().map_or(chosen, Double),
            _ => chosen,
        })
    }

    /// Reads operations whose operators have at least this precedence.
    fn binary(&mut self, precedence: u32) -> Parsed<Value> {
        let mut left = self.unary()?;
        loop {
            if let Token::Name(name) = self.token
                && let [b'%', b'0'..=b'9', ..] = name.as_bytes()
            {
                self.token = Token::Symbol('%');
                self.lexer.keep_one_byte();
            }
            let Some(operator) = Binary::new(self.token).filter(|it| it.precedence() >= precedence) else {
                return Ok(left);
            };
            self.advance();
            let start = self.mark();
            let right = self.binary(operator.precedence() + 1)?;
            left = match operator.apply(left, right) {
                Ok(value) => value,
                Err(expected) => return self.error_at(start, expected),
            };
        }
    }

    fn unary(&mut self) -> Parsed<Value> {
        let value = match self.token {
            Token::Integer { value, is_unsigned: true } => Unsigned(value),
            Token::Integer { value, is_unsigned: false } => Signed(value as i64),
            Token::F32(bits) => Single(bits),
            Token::F64(value) => Double(value),
            Token::Name("WARP_SZ") => Signed(32),
            Token::Symbol('(') => {
                self.advance();
                return self.nested(Self::parenthesis);
            }
            Token::Symbol(sign @ ('-' | '+' | '~' | '!')) => {
                self.advance();
                let start = self.mark();
                let value = self.nested(Self::unary)?;
                return match (sign, value) {
                    ('+', value) => Ok(value),
                    ('-', Signed(value)) => Ok(Signed(value.wrapping_neg())),
                    ('-', Unsigned(value)) => Ok(Unsigned(value.wrapping_neg())),
                    ('-', Single(bits)) => Ok(Single(bits ^ 1 << 31)),
                    ('-', Double(value)) => Ok(Double(-value)),
                    (_, value) => match (sign, value.integer()) {
                        ('!', Some(bits)) => Ok(Signed(i64::from(bits == 0))),
                        (_, Some(bits)) => Ok(Unsigned(!bits)),
                        (_, None) => self.error_at(start, "an integer"),
                    },
                };
            }
            _ => return self.error("a number"),
        };
        self.advance();
        Ok(value)
    }

    /// Reads the part of an expression behind `(`: a cast and its operand, or a whole expression.
    fn parenthesis(&mut self) -> Parsed<Value> {
        let Token::Directive(ty @ ("s64" | "u64")) = self.token else {
            let value = self.expression()?;
            self.expect(')')?;
            return Ok(value);
        };
        self.advance();
        self.expect(')')?;
        let start = self.mark();
        match (ty, self.unary()?.integer()) {
            ("s64", Some(bits)) => Ok(Signed(bits as i64)),
            (_, Some(bits)) => Ok(Unsigned(bits)),
            (_, None) => self.error_at(start, "an integer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        let mut parser = Parser::new(text);
        let value = parser.expression().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parser.token, Token::End, "{text}");
        value
    }

    fn error(text: &str) -> String {
        Parser::new(text).expression().unwrap_err().to_string()
    }

    #[test]
    fn operators_bind_as_in_c() {
        for (text, expected) in [
            ("2 + 3 * 4", 14),
            ("(2 + 3) * 4", 20),
            ("20 - 3 - 4", 13),
            ("100 / 7 / 2", 7),
            ("1 << 2 + 3", 32),
            ("1 < 2 == 1", 1),
            ("3 > 2 > 1", 0),
            ("2 >= 2 && 1 <= 0 || 1 != 2", 1),
            ("0 || 0", 0),
            ("-2 * -3", 6),
            ("- -2", 2),
            ("!0 + !7", 1),
            ("+5", 5),
            ("WARP_SZ - 1", 31),
            ("0 ? 1 : 0 ? 2 : 3", 3),
            ("1 ? 2 : 3 + 4", 2),
            ("1 + 1 == 2 ? 10 : 20", 10),
        ] {
            assert_eq!(value(text), Signed(expected), "{text}");
        }
        assert_eq!(value("1 | 2 ^ 3 & 2"), Unsigned(1));
        assert_eq!(value("~0"), Unsigned(u64::MAX));
    }

    #[test]
    fn a_remainder_needs_no_space_before_its_divisor() {
        assert_eq!(value("17%5"), Signed(2));
        assert_eq!(value("17 %0x10*3"), Signed(3));
        assert_eq!(value("17 % (2 + 3)"), Signed(2));
        assert_eq!(value("-1 % 10"), Signed((u64::MAX % 10) as i64));
    }

    #[test]
    fn an_unsigned_operand_makes_the_other_unsigned() {
        assert_eq!(value("-1 / 2U"), Unsigned(u64::MAX / 2));
        assert_eq!(value("-1 < 1U"), Signed(0));
        assert_eq!(value("-1 < 1"), Signed(1));
        assert_eq!(value("1 ? -1 : 0U"), Unsigned(u64::MAX));
        assert_eq!(value("-9223372036854775808"), Unsigned(1 << 63));
        assert_eq!(value("(.s64)0xFFFFFFFFFFFFFFFF"), Signed(-1));
        assert_eq!(value("(.u64) -1 >> 60"), Unsigned(15));
        assert_eq!(value("-1 >> 60"), Signed(-1));
    }

    #[test]
    fn integers_wrap_around() {
        assert_eq!(value("9223372036854775807 + 1"), Signed(i64::MIN));
        assert_eq!(value("(-9223372036854775807 - 1) / -1"), Signed(i64::MIN));
        assert_eq!(value("1 << 64"), Signed(0));
        assert_eq!(value("1U >> 0x100000000"), Unsigned(0));
        assert_eq!(value("-1 >> 64"), Signed(-1));
    }

    #[test]
    fn floats_compute_in_64_bits() {
        assert_eq!(value("1.5 + 0.25 * 2"), Double(2.0));
        assert_eq!(value("1.0 / 4.0 - 1.0"), Double(-0.75));
        assert_eq!(value("1.5 > 1.0"), Signed(1));
        assert_eq!(value("0 ? 1 : 2.5"), Double(2.5));
        assert_eq!(value("-0f3F800000"), Single(0xBF80_0000));
        assert_eq!(value("-1.5"), Double(-1.5));
    }

    #[test]
    fn errors_name_the_operand() {
        assert_eq!(
            error("5 / (1 - 1)"),
            "line 1, column 5: found \"(\" where a divisor other than 0 was expected"
        );
        assert_eq!(error("1.5 % 2"), "line 1, column 7: found \"2\" where an integer operand was expected");
        assert_eq!(error("~1.5"), "line 1, column 2: found \"1.5\" where an integer was expected");
        assert_eq!(error("(.s64)1.5"), "line 1, column 7: found \"1.5\" where an integer was expected");
        assert_eq!(error("1.5 ? 1 : 2"), "line 1, column 1: found \"1.5\" where an integer was expected");
        assert_eq!(
            error("1 + 0f3F800000"),
            "line 1, column 5: found \"0f3F800000\" \
             where an operand other than a float of 32 bits was expected"
        );
        assert_eq!(error("(1"), "line 1, column 3: found the end of the text where \")\" was expected");
        assert_eq!(error("1 + ;"), "line 1, column 5: found \";\" where a number was expected");
    }

    #[test]
    fn expressions_nest_64_deep() {
        let nested = |depth| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(value(&nested(64)), Signed(1));
        for text in [nested(65), "-".repeat(100_000), "1?".repeat(100_000), "1?1:".repeat(100_000)] {
            let error = error(&text);
            assert!(error.ends_with("nesting of at most 64 levels was expected"), "{error}");
        }
        let sum = format!("1{}", "+1".repeat(100_000));
        assert_eq!(value(&sum), Signed(100_001));
    }
}
