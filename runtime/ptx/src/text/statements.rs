//! Reads the body of a function.

use super::lexer::Token;
use super::module::{Instruction, Statement};
use super::parser::{Parsed, Parser};
use super::variables::is_type;

impl<'a> Parser<'a> {
    /// Reads a body with its braces, which are not part of the statements.
    pub(super) fn body(&mut self) -> Parsed<Vec<Statement<'a>>> {
        let mut body = Vec::new();
        let mut open = 0;
        self.expect('{')?;
        loop {
            match self.token {
                Token::Name(word) => self.label_or_instruction(word, &mut body)?,
                Token::Dotted(_) | Token::Symbol('@') => {
                    let instruction = self.guarded()?;
                    body.push(Statement::Instruction(instruction));
                }
                Token::Directive(directive) => self.directive(directive, &mut body)?,
                Token::Symbol('{') => {
                    self.enter()?;
                    open += 1;
                    self.advance();
                    body.push(Statement::Open);
                }
                Token::Symbol('}') if open > 0 => {
                    self.leave();
                    open -= 1;
                    self.advance();
                    body.push(Statement::Close);
                }
                Token::Symbol('}') => {
                    self.advance();
                    return Ok(body);
                }
                // An empty statement, as inline assembly may leave.
                Token::Symbol(';') => self.advance(),
                Token::End => return self.error("\"}\""),
                _ => return self.error("a statement"),
            }
        }
    }

    fn label_or_instruction(&mut self, word: &'a str, body: &mut Vec<Statement<'a>>) -> Parsed<()> {
        let line = self.lexer.line();
        self.advance();
        if !self.take(':') {
            if !word.starts_with(|first: char| first.is_ascii_alphabetic()) {
                return self.error("\":\"");
            }
            let instruction = self.instruction(None, word, line)?;
            body.push(Statement::Instruction(instruction));
            return Ok(());
        }
        let statement = match self.token {
            Token::Directive("branchtargets" | "calltargets") => {
                Statement::Targets { name: word, targets: self.targets()? }
            }
            Token::Directive("callprototype") => Statement::Prototype(self.prototype(word)?),
            _ => Statement::Label(word),
        };
        body.push(statement);
        Ok(())
    }

    /// Reads `.branchtargets a, b;`.
    fn targets(&mut self) -> Parsed<Vec<&'a str>> {
        let mut targets = Vec::new();
        loop {
            self.advance();
            targets.push(self.name("the name of a target")?);
            match self.token {
                Token::Symbol(',') => {}
                Token::Symbol(';') => break,
                _ => return self.error("\",\" or \";\""),
            }
        }
        self.advance();
        Ok(targets)
    }

    fn directive(&mut self, directive: &str, body: &mut Vec<Statement<'a>>) -> Parsed<()> {
        match directive {
            "reg" => body.push(self.registers()?),
            "loc" => {
                let (at, inlined) = self.location()?;
                body.push(Statement::Location { at, inlined });
            }
            "pragma" => self.pragma()?,
            "global" | "const" | "shared" | "local" | "param" | "extern" | "visible" | "weak" | "common" => {
                let linkage = self.linkage();
                self.variables(linkage, |variable| body.push(Statement::Variable(variable)))?;
            }
            "branchtargets" | "calltargets" | "callprototype" => {
                return self.error_with("a statement", "put a label and a colon before it");
            }
            _ => return self.error("a statement"),
        }
        Ok(())
    }

    /// Reads `.reg .v4 .f32 %f<59>, x;`.
    fn registers(&mut self) -> Parsed<Statement<'a>> {
        self.advance();
        let (mut ty, mut vector) = (None, 1);
        loop {
            match self.token {
                Token::Directive("v2") => vector = 2,
                Token::Directive("v4") => vector = 4,
                Token::Directive(word) if ty.is_none() && is_type(word) => ty = Some(word),
                _ => break,
            }
            self.advance();
        }
        let Some(ty) = ty else { return self.error("a type") };
        let mut names = Vec::with_capacity(1);
        loop {
            let name = self.name("the name of a register")?;
            let mut count = None;
            if self.take('<') {
                count = Some(self.u32("a number of registers")?);
                self.expect('>')?;
            }
            names.push((name, count));
            if !self.take(',') {
                break;
            }
        }
        match self.token {
            Token::Symbol(';') => self.advance(),
            _ => return self.error("\",\" or \";\""),
        }
        Ok(Statement::Registers { ty, vector, names })
    }

    /// Reads an instruction that may have a guard.
    fn guarded(&mut self) -> Parsed<Instruction<'a>> {
        let line = self.lexer.line();
        let mut guard = None;
        if self.take('@') {
            let is_negated = self.take('!');
            guard = Some((self.name("a predicate register")?, is_negated));
        }
        let (Token::Name(opcode) | Token::Dotted(opcode)) = self.token else {
            return self.error("an instruction");
        };
        if !opcode.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return self.error("an instruction");
        }
        self.advance();
        self.instruction(guard, opcode, line)
    }

    /// Reads the operands of an instruction behind its opcode.
    fn instruction(
        &mut self,
        guard: Option<(&'a str, bool)>,
        opcode: &'a str,
        line: u32,
    ) -> Parsed<Instruction<'a>> {
        // In a call, parentheses are lists; elsewhere they are part of a constant expression.
        let is_call = opcode == "call" || opcode.starts_with("call.");
        let mut operands = Vec::new();
        if !self.take(';') {
            operands.reserve_exact(4);
            loop {
                operands.push(self.operand(is_call)?);
                if self.take(';') {
                    break;
                }
                if !self.take(',') {
                    return self.error("\",\" or \";\"");
                }
            }
        }
        Ok(Instruction { guard, opcode, operands, line })
    }
}

#[cfg(test)]
mod tests {
    use super::super::module::{Init, Inlined, Linkage, Location, Number, Operand, Space, Variable};
    use super::*;

    fn body(text: &str) -> Vec<Statement<'_>> {
        let mut parser = Parser::new(text);
        let body = parser.body().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parser.token, Token::End, "{text}");
        body
    }

    fn error(text: &str) -> String {
        Parser::new(text).body().unwrap_err().to_string()
    }

    #[test]
    fn registers_have_a_count_or_none() {
        assert_eq!(
            body("{ .reg .f32 %f<59>, x, %g<2>; .reg .v4 .f32 v; .reg.b16 h; .reg .pred p; }"),
            [
                Statement::Registers {
                    ty: "f32",
                    vector: 1,
                    names: vec![("%f", Some(59)), ("x", None), ("%g", Some(2))]
                },
                Statement::Registers { ty: "f32", vector: 4, names: vec![("v", None)] },
                Statement::Registers { ty: "b16", vector: 1, names: vec![("h", None)] },
                Statement::Registers { ty: "pred", vector: 1, names: vec![("p", None)] },
            ]
        );
    }

    #[test]
    fn a_body_has_variables_of_every_space() {
        let body = body(
            "{ .param .align 4 .b8 p[12]; .local .b32 l; .shared .f32 s[4], t; .extern .shared .b8 e[];
            .global .u32 g = 1; .const .u32 c; }",
        );
        let variables: Vec<&Variable<'_>> = body
            .iter()
            .map(|statement| match statement {
                Statement::Variable(variable) => variable,
                other => panic!("{other:?}"),
            })
            .collect();
        let names: Vec<_> = variables.iter().map(|it| (it.space, it.name)).collect();
        assert_eq!(
            names,
            [
                (Space::Param, "p"),
                (Space::Local, "l"),
                (Space::Shared, "s"),
                (Space::Shared, "t"),
                (Space::Shared, "e"),
                (Space::Global, "g"),
                (Space::Const, "c"),
            ]
        );
        assert_eq!(variables[4].linkage, Linkage::Extern);
        assert_eq!(variables[5].init, Some(Init::Number(Number::Integer(1))));
    }

    #[test]
    fn scopes_labels_and_locations_are_statements() {
        let ret = Instruction { guard: None, opcode: "ret", operands: vec![], line: 1 };
        let at = |file, line, column| Location { file, line, column };
        let inlined = Inlined { function: "$L__info", offset: 16, at: at(1, 7, 8) };
        assert_eq!(
            body(
                "{ { $L__BB0_1: A : ret; } .loc 1 4 0 .loc 2 5 6, function_name $L__info+16, inlined_at 1 7 8
                .loc 1 2 3, function_name .debug_str+4 .pragma \"nounroll\", \"x\"; {{}}; }"
            ),
            [
                Statement::Open,
                Statement::Label("$L__BB0_1"),
                Statement::Label("A"),
                Statement::Instruction(ret),
                Statement::Close,
                Statement::Location { at: at(1, 4, 0), inlined: None },
                Statement::Location { at: at(2, 5, 6), inlined: Some(inlined) },
                Statement::Location { at: at(1, 2, 3), inlined: None },
                Statement::Open,
                Statement::Open,
                Statement::Close,
                Statement::Close,
            ]
        );
    }

    #[test]
    fn targets_are_lists_of_names() {
        assert_eq!(
            body("{ ts: .branchtargets a, b; fs : .calltargets f; }"),
            [
                Statement::Targets { name: "ts", targets: vec!["a", "b"] },
                Statement::Targets { name: "fs", targets: vec!["f"] },
            ]
        );
    }

    #[test]
    fn an_instruction_has_a_guard_an_opcode_and_operands() {
        let instructions = body("{ @%p1 bra L;\n@!p\nadd.s32 a, b, 1; bar.sync 0; L: trap; }");
        let instruction = |guard, opcode, operands, line| {
            Statement::Instruction(Instruction { guard, opcode, operands, line })
        };
        let number = |value| Operand::Number(Number::Integer(value));
        assert_eq!(
            instructions,
            [
                instruction(Some(("%p1", false)), "bra", vec![Operand::Name("L")], 1),
                instruction(
                    Some(("p", true)),
                    "add.s32",
                    vec![Operand::Name("a"), Operand::Name("b"), number(1)],
                    2
                ),
                instruction(None, "bar.sync", vec![number(0)], 3),
                Statement::Label("L"),
                instruction(None, "trap", vec![], 3),
            ]
        );
        let Statement::Instruction(add) = &instructions[1] else { panic!("no instruction") };
        assert_eq!(add.parts().collect::<Vec<_>>(), ["add", "s32"]);
    }

    #[test]
    fn errors_name_what_is_missing() {
        for (text, found, expected) in [
            ("{ 5", "\"5\"", "a statement"),
            ("{ .maxntid 5", "\".maxntid\"", "a statement"),
            ("{ .reg %r<5>", "\"%r\"", "a type"),
            ("{ .reg .u32 5", "\"5\"", "the name of a register"),
            ("{ .reg .u32 r<x>", "\"x\"", "a number of registers"),
            ("{ .reg .u32 r<4294967296>", "\"4294967296\"", "an integer of at most 32 bits"),
            ("{ .reg .u32 r<5;", "\";\"", "\">\""),
            ("{ .reg .u32 r s", "\"s\"", "\",\" or \";\""),
            ("{ %r1 a", "\"a\"", "\":\""),
            ("{ @5 bra", "\"5\"", "a predicate register"),
            ("{ @p 5", "\"5\"", "an instruction"),
            ("{ @p %r1", "\"%r1\"", "an instruction"),
            ("{ $v.x a", "\"$v.x\"", "an instruction"),
            ("{ t: .branchtargets a b", "\"b\"", "\",\" or \";\""),
            ("{ t: .branchtargets ;", "\";\"", "the name of a target"),
            ("{ .loc 1 x", "\"x\"", "the number of a file, line or column"),
            ("{ .loc 1 2 3, x", "\"x\"", "\"function_name\" or \"inlined_at\""),
            ("{ add.s32 a, b\n sub", "\"sub\"", "\",\" or \";\""),
            ("{ {ret;}", "the end of the text", "\"}\""),
            ("{ \"text\"", "the string \"text\"", "a statement"),
            ("{ #", "\"#\"", "a token of PTX"),
        ] {
            let error = error(text);
            assert!(
                error.ends_with(&format!("found {found} where {expected} was expected")),
                "{text}: {error}"
            );
        }
        assert_eq!(
            error("{ .calltargets f;"),
            "line 1, column 3: found \".calltargets\" where a statement was expected; \
             put a label and a colon before it"
        );
        assert_eq!(
            error(&"{".repeat(100_000)),
            "line 1, column 66: found a 65th level where nesting of at most 64 levels was expected"
        );
    }
}
