//! Reads variables, parameters and initial values.

use super::directives::space;
use super::lexer::Token;
use super::module::{Init, Linkage, Space, Variable};
use super::parser::{Parsed, Parser};

impl<'a> Parser<'a> {
    /// Reads `.shared .align 4 .b8 a[16], b;` from its state space on, and hands each variable to
    /// `add`.
    pub(super) fn variables(&mut self, linkage: Linkage, mut add: impl FnMut(Variable<'a>)) -> Parsed<()> {
        let mut variable = self.declaration(linkage)?;
        loop {
            let mut next = variable.clone();
            if self.take('=') {
                variable.init = Some(self.init()?);
            }
            add(variable);
            if !self.take(',') {
                break;
            }
            next.line = self.lexer.line();
            next.name = self.name("the name of a variable")?;
            next.dims = self.dims()?;
            variable = next;
        }
        match self.token {
            Token::Symbol(';') => self.advance(),
            _ => return self.error("\",\" or \";\""),
        }
        Ok(())
    }

    /// Reads a declaration without its initial value: the state space, the type, the name and the
    /// dimensions. The state space `.reg` of a parameter counts as `.param`.
    pub(super) fn declaration(&mut self, linkage: Linkage) -> Parsed<Variable<'a>> {
        let line = self.lexer.line();
        let space = match self.token {
            Token::Directive("reg") => Some(Space::Param),
            Token::Directive(word) => space(word),
            _ => None,
        };
        let Some(space) = space else { return self.error("a state space") };
        self.advance();
        let (mut align, mut ty, mut vector) = (None, None, 1);
        // `.ptr .global .align 8` describes the memory that a parameter points to.
        let mut is_pointer = false;
        loop {
            match self.token {
                Token::Directive("align") => {
                    self.advance();
                    let start = self.mark();
                    let bytes = self.constant_size("an alignment in bytes")?;
                    if !bytes.is_power_of_two() {
                        return self.error_at(start, "a power of two");
                    }
                    if !is_pointer {
                        align = Some(bytes);
                    }
                    continue;
                }
                Token::Directive("attribute") => {
                    self.attribute()?;
                    continue;
                }
                Token::Directive("ptr") if space == Space::Param => is_pointer = true,
                Token::Directive("global" | "const" | "shared" | "local") if is_pointer => {}
                Token::Directive("v2") => vector = 2,
                Token::Directive("v4") => vector = 4,
                Token::Directive(word) if ty.is_none() && is_type(word) => ty = Some(word),
                Token::Name(_) if ty.is_some() => break,
                _ if ty.is_none() => return self.error("a type"),
                _ => return self.error("a name"),
            }
            self.advance();
        }
        let Some(ty) = ty else { return self.error("a type") };
        let name = self.name("a name")?;
        Ok(Variable { linkage, space, align, ty, vector, name, dims: self.dims()?, init: None, line })
    }

    /// Reads the dimensions of an array: `[4][]`.
    fn dims(&mut self) -> Parsed<Vec<Option<u64>>> {
        let mut dims = Vec::new();
        while self.take('[') {
            if self.take(']') {
                dims.push(None);
                continue;
            }
            dims.push(Some(self.constant_size("a number of elements")?));
            self.expect(']')?;
        }
        Ok(dims)
    }

    fn init(&mut self) -> Parsed<Init<'a>> {
        match self.token {
            Token::Symbol('{') => {
                self.advance();
                Ok(Init::List(self.nested(Self::inits)?))
            }
            _ if self.is_at_constant() => {
                let number = self.constant()?;
                if matches!(self.token, Token::Symbol('(')) {
                    return self.error_with("\",\", \";\" or \"}\"", "masks of addresses are not supported");
                }
                Ok(Init::Number(number))
            }
            Token::Name(mut name) => {
                self.advance();
                let is_generic = name == "generic" && self.take('(');
                if is_generic {
                    name = self.name("the name of a variable")?;
                    self.expect(')')?;
                }
                Ok(Init::Address { name, offset: self.offset()?, is_generic })
            }
            _ => self.error("an initial value"),
        }
    }

    /// Reads a list of initial values behind its `{`.
    fn inits(&mut self) -> Parsed<Vec<Init<'a>>> {
        let mut list = Vec::new();
        if self.take('}') {
            return Ok(list);
        }
        loop {
            list.push(self.init()?);
            if self.take('}') {
                return Ok(list);
            }
            if !self.take(',') {
                return self.error("\",\" or \"}\"");
            }
        }
    }

    /// Reads the numbers behind an address, `+4` or `-8+2*4`, and returns their sum.
    pub(super) fn offset(&mut self) -> Parsed<i64> {
        let mut sum = 0i64;
        loop {
            if self.take('+') {
                sum = sum.wrapping_add(self.constant_factor()?);
            } else if self.take('-') {
                sum = sum.wrapping_sub(self.constant_factor()?);
            } else {
                return Ok(sum);
            }
        }
    }
}

/// Returns whether a directive is the type of a variable.
pub(super) fn is_type(directive: &str) -> bool {
    matches!(
        directive,
        "b8" | "b16"
            | "b32"
            | "b64"
            | "b128"
            | "u8"
            | "u16"
            | "u32"
            | "u64"
            | "s8"
            | "s16"
            | "s32"
            | "s64"
            | "f16"
            | "f16x2"
            | "bf16"
            | "bf16x2"
            | "tf32"
            | "f32"
            | "f64"
            | "e4m3"
            | "e5m2"
            | "e4m3x2"
            | "e5m2x2"
            | "pred"
            | "texref"
            | "samplerref"
            | "surfref"
    )
}

#[cfg(test)]
mod tests {
    use super::super::module::Number;
    use super::*;

    fn variables(text: &str) -> Vec<Variable<'_>> {
        let mut parser = Parser::new(text);
        let mut all = Vec::new();
        while parser.token != Token::End {
            let linkage = parser.linkage();
            parser
                .variables(linkage, |variable| all.push(variable))
                .unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        all
    }

    fn init(text: &str) -> Init<'_> {
        variables(text).remove(0).init.unwrap()
    }

    fn error(text: &str) -> String {
        let mut parser = Parser::new(text);
        parser.variables(Linkage::Internal, |_| {}).unwrap_err().to_string()
    }

    #[test]
    fn a_variable_has_linkage_space_alignment_type_and_dimensions() {
        let all = variables(
            ".visible .global .align 16 .b8 table[4][2 * 3];\n.extern .shared .align 4 .b8 smem[];
            .weak .const .v4 .f32 w;.common .global .v2 .u16 c[WARP_SZ]; .local .b8 depot[8], x, y[2];",
        );
        let expected = Variable {
            linkage: Linkage::Visible,
            space: Space::Global,
            align: Some(16),
            ty: "b8",
            vector: 1,
            name: "table",
            dims: vec![Some(4), Some(6)],
            init: None,
            line: 1,
        };
        assert_eq!(all[0], expected);
        assert_eq!((all[1].linkage, all[1].space, all[1].line), (Linkage::Extern, Space::Shared, 2));
        assert_eq!((all[1].name, &all[1].dims), ("smem", &vec![None]));
        assert_eq!((all[2].linkage, all[2].space), (Linkage::Weak, Space::Const));
        assert_eq!((all[2].vector, all[2].ty, all[2].align), (4, "f32", None));
        assert_eq!((all[3].linkage, all[3].vector, &all[3].dims), (Linkage::Common, 2, &vec![Some(32)]));
        let rest: Vec<_> = all[4..].iter().map(|it| (it.space, it.name, it.dims.len())).collect();
        assert_eq!(rest, [(Space::Local, "depot", 1), (Space::Local, "x", 0), (Space::Local, "y", 1)]);
    }

    #[test]
    fn an_attribute_and_a_reference_type_are_read() {
        let all = variables(
            ".global .attribute(.managed) .align 4 .u32 m; .global .attribute(.unified(1, 2)) .b64 u;
            .global .texref t; .global .samplerref s; .global .surfref f;",
        );
        let types: Vec<_> = all.iter().map(|it| (it.name, it.ty)).collect();
        assert_eq!(
            types,
            [("m", "u32"), ("u", "b64"), ("t", "texref"), ("s", "samplerref"), ("f", "surfref")]
        );
    }

    #[test]
    fn an_initial_value_is_a_number_an_address_or_a_list() {
        assert_eq!(init(".global .u32 a = 1 << 4;"), Init::Number(Number::Integer(16)));
        assert_eq!(init(".const .f32 a = -0f3F800000;"), Init::Number(Number::F32(0xBF80_0000)));
        let address = |name, offset, is_generic| Init::Address { name, offset, is_generic };
        assert_eq!(init(".global .u64 a = b;"), address("b", 0, false));
        assert_eq!(init(".global .u64 a = b+8-2*2;"), address("b", 4, false));
        assert_eq!(init(".global .u64 a = generic(b)+4;"), address("b", 4, true));
        assert_eq!(init(".global .u64 a = generic;"), address("generic", 0, false));
        let number = |value| Init::Number(Number::Integer(value));
        assert_eq!(
            init(".global .u64 a[2][2] = {{1, -2}, {generic(f), g}}, b;"),
            Init::List(vec![
                Init::List(vec![number(1), number(-2)]),
                Init::List(vec![address("f", 0, true), address("g", 0, false)])
            ])
        );
        assert_eq!(init(".global .u64 a[1] = {};"), Init::List(vec![]));
        assert_eq!(variables(".global .u32 a = 1, b;")[1].init, None);
    }

    #[test]
    fn errors_name_what_is_missing() {
        for (text, found, expected) in [
            (".global .foo a;", "\".foo\"", "a type"),
            (".global a;", "\"a\"", "a type"),
            (".global .u32 .u32 a;", "\".u32\"", "a name"),
            (".global .u32;", "\";\"", "a name"),
            (".global .align 3 .u32 a;", "\"3\"", "a power of two"),
            (".global .u32 a[-1];", "\"-\"", "a number of elements"),
            (".global .u32 a[1.5];", "\"1.5\"", "a number of elements"),
            (".global .u32 a[1;", "\";\"", "\"]\""),
            (".global .u32 a", "the end of the text", "\",\" or \";\""),
            (".global .u32 a = ;", "\";\"", "an initial value"),
            (".global .u32 a = {1 2};", "\"2\"", "\",\" or \"}\""),
            (".global .u64 .ptr a;", "\".ptr\"", "a name"),
            (".global .attribute .u64 a;", "\".u64\"", "\"(\""),
            (".global .attribute(.managed .u64 a;", "\";\"", "\")\""),
        ] {
            let error = error(text);
            assert!(
                error.ends_with(&format!("found {found} where {expected} was expected")),
                "{text}: {error}"
            );
        }
        assert_eq!(
            error(".global .b8 a[8] = {0xFF(b)};"),
            "line 1, column 25: found \"(\" where \",\", \";\" or \"}\" was expected; \
             masks of addresses are not supported"
        );
        let deep = format!(".global .u32 a = {}", "{".repeat(100_000));
        assert!(error(&deep).ends_with("found a 65th level where nesting of at most 64 levels was expected"));
    }
}
