//! Reads operands.

use super::lexer::{Token, is_component};
use super::module::Operand;
use super::parser::{Parsed, Parser};

impl<'a> Parser<'a> {
    /// Reads an operand, which may be a pair. In a call, parentheses are a list of operands.
    pub(super) fn operand(&mut self, is_call: bool) -> Parsed<Operand<'a>> {
        let first = self.single(is_call)?;
        if !self.take('|') {
            return Ok(first);
        }
        let second = self.single(is_call)?;
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    fn single(&mut self, is_call: bool) -> Parsed<Operand<'a>> {
        if let Some(name) = self.operand_name() {
            self.advance();
            return match self.token {
                _ if name == "_" => Ok(Operand::Nothing),
                Token::Symbol('+' | '-') => Ok(Operand::Offset(name, self.offset()?)),
                _ => Ok(Operand::Name(name)),
            };
        }
        match self.token {
            Token::Symbol('[') => {
                self.advance();
                self.nested(Self::memory)
            }
            Token::Symbol('{') => {
                self.advance();
                Ok(Operand::Vector(self.nested(|parser| parser.list('}', Vec::with_capacity(4)))?))
            }
            Token::Symbol('(') if is_call => {
                self.advance();
                Ok(Operand::List(self.nested(|parser| parser.list(')', Vec::new()))?))
            }
            Token::Symbol('!') => {
                let start = self.mark();
                self.advance();
                if let Some(name) = self.operand_name() {
                    self.advance();
                    return Ok(Operand::Not(name));
                }
                self.reset(start);
                Ok(Operand::Number(self.constant()?))
            }
            _ if self.is_at_constant() => Ok(Operand::Number(self.constant()?)),
            _ => self.error("an operand"),
        }
    }

    /// Returns the current token if it is the name of an operand, which may have a component.
    fn operand_name(&self) -> Option<&'a str> {
        match self.token {
            Token::Name(name) if name != "WARP_SZ" => Some(name),
            Token::Dotted(name) if name.split_once('.').is_some_and(|(_, word)| is_component(word)) => {
                Some(name)
            }
            _ => None,
        }
    }

    /// Reads memory behind its `[`: an address, or the operands of a texture.
    fn memory(&mut self) -> Parsed<Operand<'a>> {
        let start = self.mark();
        let base = self.operand_name();
        let offset = match base {
            Some(_) => {
                self.advance();
                self.offset()?
            }
            None if self.is_at_constant() => {
                let Some(value) = self.constant_integer()? else {
                    return self.error_at(start, "an address");
                };
                value
            }
            None => return self.error("an address"),
        };
        match self.token {
            Token::Symbol(']') => {
                self.advance();
                Ok(Operand::Memory { base, offset })
            }
            Token::Symbol(',') => {
                self.reset(start);
                Ok(Operand::List(self.list(']', Vec::new())?))
            }
            _ => self.error("\"+\", \",\" or \"]\""),
        }
    }

    /// Appends operands up to a closing bracket to a list.
    fn list(&mut self, close: char, mut list: Vec<Operand<'a>>) -> Parsed<Vec<Operand<'a>>> {
        if self.take(close) {
            return Ok(list);
        }
        loop {
            list.push(self.operand(false)?);
            if self.take(close) {
                return Ok(list);
            }
            if !self.take(',') {
                return self.error(&format!("\",\" or \"{close}\""));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::module::Number;
    use super::Operand::{List, Memory, Name, Not, Nothing, Offset, Pair, Vector};
    use super::*;

    fn operand(text: &str) -> Operand<'_> {
        let mut parser = Parser::new(text);
        let operand = parser.operand(false).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parser.token, Token::End, "{text}");
        operand
    }

    /// Returns the operands of a call, which has no operand outside of a list.
    fn call(text: &str) -> Vec<Operand<'_>> {
        let mut parser = Parser::new(text);
        let mut operands = vec![parser.operand(true).unwrap()];
        while parser.take(',') {
            operands.push(parser.operand(true).unwrap_or_else(|error| panic!("{text}: {error}")));
        }
        assert_eq!(parser.token, Token::End, "{text}");
        operands
    }

    fn error(text: &str) -> String {
        Parser::new(text).operand(false).unwrap_err().to_string()
    }

    fn int(value: i128) -> Operand<'static> {
        Operand::Number(Number::Integer(value))
    }

    #[test]
    fn a_name_may_have_a_component_or_an_offset() {
        for name in ["%r1", "%tid.x", "v.x", "v.a", "$L__BB0_3", "softmax", "%r1.b0"] {
            assert_eq!(operand(name), Name(name));
        }
        assert_eq!(operand("_"), Nothing);
        assert_eq!(operand("table+16"), Offset("table", 16));
        assert_eq!(operand("table - 4 + 2"), Offset("table", -2));
        assert_eq!(operand("!%p1"), Not("%p1"));
    }

    #[test]
    fn numbers_are_computed() {
        assert_eq!(operand("-4294967296"), int(-4_294_967_296));
        assert_eq!(operand("0xFFFFFFFFFFFFFFFF"), int(u64::MAX.into()));
        assert_eq!(operand("(1 << 4) | 1"), int(17));
        assert_eq!(operand("!0 + 1"), int(2));
        assert_eq!(operand("WARP_SZ-1"), int(31));
        assert_eq!(operand("0f3F800000"), Operand::Number(Number::F32(0x3F80_0000)));
        assert_eq!(operand("0d3FF0000000000000"), Operand::Number(Number::F64(0x3FF0_0000_0000_0000)));
        assert_eq!(operand("-1.5"), Operand::Number(Number::F64((-1.5f64).to_bits())));
    }

    #[test]
    fn memory_has_a_base_an_offset_or_both() {
        assert_eq!(operand("[%rd1]"), Memory { base: Some("%rd1"), offset: 0 });
        assert_eq!(operand("[%rd1+-8]"), Memory { base: Some("%rd1"), offset: -8 });
        assert_eq!(operand("[ name + 2 * 4 - 1 ]"), Memory { base: Some("name"), offset: 7 });
        assert_eq!(operand("[%v.x+4]"), Memory { base: Some("%v.x"), offset: 4 });
        assert_eq!(operand("[16]"), Memory { base: None, offset: 16 });
        assert_eq!(operand("[4*4+1]"), Memory { base: None, offset: 17 });
        assert_eq!(operand("[0xFFFFFFFFFFFFFFFF]"), Memory { base: None, offset: -1 });
    }

    #[test]
    fn a_texture_with_its_coordinates_is_a_list() {
        assert_eq!(
            operand("[tex, {%f1, %f2}]"),
            List(vec![Name("tex"), Vector(vec![Name("%f1"), Name("%f2")])])
        );
        assert_eq!(
            operand("[%rd1+8, smp, {%r1}]"),
            List(vec![Offset("%rd1", 8), Name("smp"), Vector(vec![Name("%r1")])])
        );
    }

    #[test]
    fn vectors_and_pairs_have_operands_inside() {
        assert_eq!(operand("{%r1, _, 3, -1}"), Vector(vec![Name("%r1"), Nothing, int(3), int(-1)]));
        let pair = |first, second| Pair(Box::new(first), Box::new(second));
        assert_eq!(operand("%p|%q"), pair(Name("%p"), Name("%q")));
        assert_eq!(operand("%r1 | _"), pair(Name("%r1"), Nothing));
        assert_eq!(operand("_|%q"), pair(Nothing, Name("%q")));
        assert_eq!(operand("{a,b}|p"), pair(Vector(vec![Name("a"), Name("b")]), Name("p")));
        assert_eq!(operand("1|2"), int(3));
    }

    #[test]
    fn a_call_has_lists_in_all_forms() {
        let list = |names: &[&'static str]| List(names.iter().map(|name| Name(name)).collect());
        assert_eq!(call("f"), [Name("f")]);
        assert_eq!(call("f, (a, b)"), [Name("f"), list(&["a", "b"])]);
        assert_eq!(call("(r), f"), [list(&["r"]), Name("f")]);
        assert_eq!(call("(r), %rd1, (a), proto"), [list(&["r"]), Name("%rd1"), list(&["a"]), Name("proto")]);
        assert_eq!(call("(_), f, ()"), [List(vec![Nothing]), Name("f"), list(&[])]);
        assert_eq!(call("f, ((1 + 2) * 2, -1)"), [Name("f"), List(vec![int(6), int(-1)])]);
    }

    #[test]
    fn errors_name_what_is_missing() {
        for (text, found, expected) in [
            (";", "\";\"", "an operand"),
            ("add.s32", "\"add.s32\"", "an operand"),
            ("[%rd1", "the end of the text", "\"+\", \",\" or \"]\""),
            ("[]", "\"]\"", "an address"),
            ("[1.5]", "\"1.5\"", "an address"),
            ("[a+1.5]", "\"1.5\"", "an integer"),
            ("[a+%r1]", "\"%r1\"", "a number"),
            ("{a b}", "\"b\"", "\",\" or \"}\""),
            ("[a, b}", "\"}\"", "\",\" or \"]\""),
            ("!;", "\";\"", "a number"),
            ("-%r1", "\"%r1\"", "a number"),
            ("99999999999999999999", "\"99999999999999999999\"", "an integer of at most 64 bits"),
        ] {
            let error = error(text);
            assert!(
                error.ends_with(&format!("found {found} where {expected} was expected")),
                "{text}: {error}"
            );
        }
        for open in ["{", "[a,", "{1,"] {
            let error = error(&open.repeat(100_000));
            assert!(error.ends_with("found a 65th level where nesting of at most 64 levels was expected"));
        }
    }
}
